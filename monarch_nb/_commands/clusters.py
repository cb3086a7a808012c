"""Commands about hosts of engines: they start a mesh from typed flags, and show tables of profiles, requests
and hosts.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from monarch_nb._commands.parser import Namespace
from monarch_nb._units import duration
from monarch_nb.exceptions import MeshError, MeshUsageError
from monarch_nb.job.allocation import Allocation, Plan, damaged_records, read_record
from monarch_nb.job.engines import ENGINES, State, engine_of, ignored
from monarch_nb.job.engines.own_allocation import OwnAllocation, num_nodes
from monarch_nb.job.profiles import Profile, find_profile, list_profiles, user_file
from monarch_nb.job.spec import INSIDE, HostSpec, hosts_typed, machines
from monarch_nb.mesh import Mesh, growing, inside, on_engine
from monarch_nb.mesh.running import Asked

if TYPE_CHECKING:
    from monarch_nb._client.heal_report import HealReport

_OF_ENGINES = {
    "time": "time_s",
    "partition": "partition",
    "account": "account",
    "login": "login",
    "python": "python",
    "gpus": "gpus",
    "controller": "controller",
}
"""Flags of `start` that are also keys of a profile, and the fields of a spec that they set."""


def own_allocation() -> str | None:
    """Return the engine of the job that this program runs in, if the job has further nodes: meshes without
    another engine start there. A job with one node is this machine.
    """
    return OwnAllocation.name if num_nodes() > 1 else None


def num_hosts_here(arguments: Namespace) -> int:
    """Return the requested number of host processes on this machine, 0 for none; refuse flags for hosts of an
    engine without `--on`.

    Raises:
        MeshUsageError: naming the flag.
    """
    given = [
        k
        for k in (*_OF_ENGINES, "wait", "keep_queued", "dry_run")
        if k != "gpus" and getattr(arguments, k, None)
    ]
    if given:
        raise MeshUsageError(
            f"start: --{given[0].replace('_', '-')} is for hosts of an engine; say which: --on "
            "PROFILE. Those that there are: %mesh clusters"
        )
    if arguments.hosts and not arguments.hosts.isdigit():
        raise MeshUsageError(
            f"start: --hosts {arguments.hosts} is for hosts of an engine; say which: --on PROFILE. On "
            "this machine give one number: %mesh start --hosts 2"
        )
    return int(arguments.hosts or 0)


def profile_of(arguments: Namespace) -> Profile:
    """Return the typed profile, with values of flags replacing its own.

    Raises:
        MeshUsageError: for an unknown one, naming the nearest; for flags that aren't for hosts of an engine.
    """
    if arguments.job is not None:
        raise MeshUsageError(
            f"start: --job {arguments.job} is for this machine, and --on {arguments.on} for others; "
            "give one of them"
        )
    found = find_profile(arguments.on, ENGINES)
    changes: dict[str, object] = {
        field: getattr(arguments, k) for k, field in _OF_ENGINES.items() if getattr(arguments, k) is not None
    }
    if arguments.hosts is not None:
        changes |= hosts_typed(arguments.hosts)
    return replace(found, spec=replace(found.spec, **changes))  # type: ignore[arg-type]


def start_on(arguments: Namespace, plan: Plan) -> Mesh:
    """Start a mesh on hosts of an engine, and show the state of the request meanwhile."""
    profile = profile_of(arguments)
    start = inside.start_inside if profile.spec.controller == INSIDE else on_engine.start_on
    with WaitingLine() as line:
        return start(
            arguments.name,
            profile,
            plan,
            with_program=arguments.with_kernel,
            wait_s=arguments.wait,
            keeps_queued=arguments.keep_queued or arguments.wait is None,
            on_wait=line.show,
        )


def grown(mesh: Mesh, arguments: Namespace) -> HealReport:
    """Add hosts or ranks to a mesh, and show the state of the request meanwhile."""
    names = machines(arguments.hosts) if arguments.hosts else ()
    if names and arguments.num not in (None, len(names)):
        raise MeshUsageError(f"grow: {arguments.num} hosts, and {len(names)} names of some; give one of them")
    with WaitingLine() as line:
        return growing.grow(
            mesh,
            len(names) or arguments.num or 1,
            dim=arguments.dim or "",
            machines=names,
            as_spares=arguments.spares,
            wait_s=arguments.wait,
            on_wait=line.show,
        )


def healed(mesh: Mesh, arguments: Namespace) -> HealReport:
    """Repair the losses of a mesh; show meanwhile how requested hosts arrive."""
    with WaitingLine() as line:
        return growing.heal(mesh, replay=arguments.replay, on_wait=line.show)


def shrunk(mesh: Mesh, arguments: Namespace) -> HealReport:
    """Remove hosts or ranks from a mesh, or leave out lost ones."""
    return growing.shrink(mesh, arguments.num or 0, dim=arguments.dim or "", hosts=arguments.hosts or ())


def check_shrunk(mesh: Mesh, arguments: Namespace) -> None:
    """Check the arguments that say which hosts or ranks to remove.

    Raises:
        MeshUsageError: for an unknown dimension or host, and if nothing would be left.
    """
    growing.check_shrink(mesh, arguments.num or 0, dim=arguments.dim or "", hosts=arguments.hosts or ())


def resized(mesh: Mesh, arguments: Namespace) -> HealReport:
    """Change the sizes of a mesh; return hosts of an engine that have no ranks then."""
    report = mesh.resize(force=arguments.force, **arguments.sizes)
    growing.give_back_idle(mesh)
    return report


def wait_on(arguments: Namespace) -> Mesh:
    """Continue to wait for a mesh that was requested before; connect to it again, if it's inside a job."""
    wait = on_engine.wait_on if on_engine.waits(arguments.name) else inside.wait_inside
    with WaitingLine() as line:
        return wait(
            arguments.name,
            wait_s=arguments.wait,
            keeps_queued=arguments.keep_queued or arguments.wait is None,
            on_wait=line.show,
        )


def asked_on_engine(mesh: Mesh, arguments: Namespace) -> Asked:
    """Return the request for a running mesh on hosts of an engine: a changed request never ends the mesh.

    Raises:
        MeshUsageError: naming what is otherwise, and what to type.
    """
    asked, has = profile_of(arguments), read_record(mesh.name)
    if has is None:
        raise MeshUsageError(
            f"start: mesh {mesh.name!r} runs already, on this machine and not on {asked.name}. End it "
            f"first: %mesh stop {mesh.name}; or choose another name"
        )
    difference = has.spec.difference(asked.spec)
    if difference:
        raise MeshUsageError(
            f"start: mesh {mesh.name!r} runs already, with other hosts: {difference}. Keep it: %mesh "
            f"start {mesh.name}; end it: %mesh stop {mesh.name}; or choose another name"
        )
    return Asked(
        idle_timeout_s=arguments.idle_timeout,
        on_failure=arguments.on_failure,
        with_program=arguments.with_kernel,
    )


def script_text(arguments: Namespace, plan: Plan) -> str:
    """Return the script that would be submitted."""
    profile = profile_of(arguments)
    if unheeded := ignored(profile.spec):
        raise MeshUsageError(f"start --on {profile.name}: {unheeded}")
    return engine_of(profile.spec).script(Allocation.new(arguments.name, profile.name, profile.spec, plan))


class WaitingLine:
    """A status line that is updated while a command waits: in place in a notebook and in a terminal;
    elsewhere as a new line for each new text.
    """

    def __init__(self) -> None:
        self._shown = ""
        self._handle: Any = None

    def __enter__(self) -> WaitingLine:
        return self

    def show(self, text: str) -> None:
        """Show a line in place of the last one."""
        if text == self._shown:
            return
        before, self._shown = self._shown, text
        if _in_notebook():
            self._draw(text)
        elif sys.stdout.isatty():
            sys.stdout.write(f"\r{text.ljust(len(before))}")
            sys.stdout.flush()
        else:
            print(text, flush=True)

    def _draw(self, text: str) -> None:
        from IPython.display import display

        bundle = {"text/plain": text}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def __exit__(self, *_: object) -> None:
        if self._shown and not _in_notebook() and sys.stdout.isatty():
            print(flush=True)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


# --- tables

ASK_S = 6.0
"""How long `%mesh clusters` waits for engines."""


def clusters_text() -> str:
    """Return profiles and engines as a table."""
    found, wrong = list_clusters()
    rows = [("name", "engine", "hosts", "usable here")]
    rows += [(p.name, p.spec.engine, hosts_of(p.spec), why_not or "yes") for p, why_not in found]
    has_profiles = wrong or any(p.source for p, _ in found)
    ending = "" if has_profiles else f"\nno profiles yet; they lie in {user_file()}"
    return "\n".join([_table(rows), *wrong.values()]) + ending


def list_clusters() -> tuple[list[tuple[Profile, str]], dict[str, str]]:
    """Return profiles, and engines without one, each with why it can't be used here (empty if it can); and
    what is said of profiles that can't be, as `list_profiles` does.
    """
    profiles, wrong = list_profiles(ENGINES)
    known = [*profiles.values(), *(Profile(name, HostSpec(name)) for name in ENGINES)]
    return list(zip(known, _why_unusable_all([p.spec for p in known]), strict=True)), wrong


def _why_unusable_all(specs: Sequence[HostSpec]) -> list[str]:
    """Return why each engine can't be used here, and what to type; empty if it can. All are asked at once,
    and none keeps the others waiting.
    """
    said = [f"no answer within {ASK_S:g} s" for _ in specs]

    def ask(i: int) -> None:
        said[i] = _why_unusable(specs[i])

    # Daemons: this program doesn't wait at its end for an engine that doesn't answer.
    asking = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(len(specs))]
    for thread in asking:
        thread.start()
    deadline = time.monotonic() + ASK_S
    for thread in asking:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(said)


def _why_unusable(spec: HostSpec) -> str:
    try:
        return ignored(spec) or engine_of(spec).usable(spec).why_not
    except MeshError as error:
        return str(error)


def hosts_of(spec: HostSpec) -> str:
    """Return the number or the names of hosts that a profile gives; empty if it says neither."""
    return (
        ",".join(spec.machines[:4]) + ("..." if len(spec.machines) > 4 else "")
        if spec.machines
        else str(spec.hosts or "")
    )


def queue_text() -> str:
    """Return all allocations of this user as a table; ended ones are listed once, and then removed."""
    rows = [("mesh", "hosts of", "hosts", "state", "since", "left or starts")]
    for asked, look in on_engine.looks():
        left = (
            duration(round(look.ends_at - time.time())) if look.ends_at and look.ends_at > time.time() else ""
        )
        if look.state == State.QUEUED and look.starts_at:
            left = f"starts about {time.strftime('%H:%M', time.localtime(look.starts_at))}"
        state = f"{look.state} ({look.reason})" if look.reason else str(look.state)
        rows.append(
            (
                asked.mesh,
                asked.described(),
                str(asked.spec.wanted),
                state,
                duration(round(time.time() - asked.submitted_at)),
                left,
            )
        )
    damaged = damaged_records()
    if len(rows) > 1:
        return "\n".join([_table(rows), *damaged])
    none = "no hosts of engines were asked for. Ask for some: %mesh start NAME --on PROFILE"
    return "\n".join(damaged) or none


def cancelled(name: str, *, forgets: bool) -> str:
    """Release the hosts of a mesh; return a message about it.

    Args:
        forgets: see `on_engine.cancel`.
    """
    return f"{on_engine.cancel(name, forgets=forgets).described()} of mesh {name!r} was cancelled"


def hosts_text(mesh: Mesh) -> str:
    """Return the hosts of a mesh as a table, with their state in the engine."""
    rows = [
        ("host", "name", "state", "cores", "GPUs", "ranks"),
        *(row.cells() for row in on_engine.host_rows(mesh)),
    ]
    return "\n".join([_table(rows), *on_engine.allocation_lines(mesh.name)])


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
