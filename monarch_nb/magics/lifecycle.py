"""Verbs about a mesh's life: start, list, attach, detach, use, status, lease, interrupt, restart, stacks,
why, stop.
"""

from __future__ import annotations

import html
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb._protocol.ranks import Stop
from monarch_nb._shape import name_ranks
from monarch_nb.actor.handle import placement_of, session_of
from monarch_nb.display import top as tables
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.magics.arguments import Namespace
from monarch_nb.magics.clusters import asked_on_engine, script_text
from monarch_nb.magics.missed import show_missed
from monarch_nb.magics.running import refuse_other_job, take_on_group
from monarch_nb.magics.starting import asked_for, describe, plan_of, set_up, start_or_attach
from monarch_nb.magics.state import State
from monarch_nb.mesh import on_engine
from monarch_nb.stacks import stacks_text
from monarch_nb.status import MeshStatus, duration

if TYPE_CHECKING:
    from monarch_nb.why import HangReport


def start(state: State, arguments: Namespace) -> None:
    """Start a mesh, or attach to the running one of that name. With no size: one rank per GPU, or per
    core.
    """
    from monarch_nb.mesh.running import refuse_other, take_on

    if arguments.dry_run and arguments.on:
        print(script_text(arguments, plan_of(arguments)))
        return
    before = state.current
    mesh, is_new = start_or_attach(state, arguments)
    if not is_new:
        try:
            asked = asked_on_engine(mesh, arguments) if arguments.on else asked_for(arguments)
            refuse_other(mesh, asked)
            refuse_other_job(mesh, arguments.job)
        except MeshUsageError:
            state.go_back(before)
            raise
        messages = take_on(mesh, asked)
        if arguments.init_process_group is not None:
            messages.append(take_on_group(mesh, arguments.init_process_group, arguments.group_timeout))
        if arguments.force:
            messages.append("--force had nothing to do: no rank was started")
        print("; ".join([f"attached to {describe(mesh)}, which was running", *messages]))
        show_missed(mesh)
        return
    state.adopt(mesh)
    print(set_up(mesh, arguments))


def list_(state: State, arguments: Namespace) -> None:
    """List the meshes of this user: how big, how they are, how old, whose."""
    from monarch_nb.mesh.listing import list_rows, table_text

    rows = list_rows()
    print(table_text(rows, state.current) if rows else "no mesh runs. Start one: %mesh start")


def attach(state: State, arguments: Namespace) -> None:
    """Connect to a running mesh; show what was missed. A cell that still runs goes on streaming here."""
    mesh = state.attach(arguments.name)
    print(f"attached to {describe(mesh)}")
    show_missed(mesh)


def detach(state: State, arguments: Namespace) -> None:
    """Disconnect from a mesh; it goes on."""
    mesh = state.mesh(arguments.name)
    state.drop(mesh.name)
    mesh._session.close()
    print(f"detached from mesh {mesh.name!r}; it goes on. Come back: %mesh attach {mesh.name}")


def use(state: State, arguments: Namespace) -> None:
    """Make a mesh the one that %%mesh runs on; without a name: say which one is."""
    if arguments.name is None:
        print(f"using {describe(state.mesh())}; another one: %mesh use NAME, of those in %mesh list")
        return
    state.adopt(state.mesh(arguments.name))
    print(f"using {describe(state.mesh())}")


def status(state: State, arguments: Namespace) -> None:
    """Show the state of a mesh, or that there's none."""
    if arguments.name is None and state.current is None:
        list_(state, arguments)
        return
    print(state.mesh(arguments.name).status().text())


def top(state: State, arguments: Namespace) -> None:
    """Show what each rank does and takes, live, until you interrupt it; --count N: N times."""
    from IPython.display import display

    handle: Any = None

    def show(status: MeshStatus) -> None:
        nonlocal handle
        text = tables.text(status)
        bundle = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
        if handle is None:
            handle = display(bundle, raw=True, display_id=True)
        else:
            handle.update(bundle, raw=True)

    with suppress(KeyboardInterrupt):
        tables.follow(state.mesh(arguments.name), show, every_s=arguments.every, count=arguments.count)


def lease(state: State, arguments: Namespace) -> None:
    """Show after how long without client and running cell a mesh ends, or set it: `%mesh lease 24h`."""
    mesh = state.mesh(arguments.name)
    if arguments.time is not None:
        mesh.set_lease(arguments.time)
    limit = mesh.status().idle_timeout_s
    print(f"mesh {mesh.name!r} ends after {duration(limit or 0)} without a client and a running cell")


def interrupt(state: State, arguments: Namespace) -> None:
    """Interrupt what runs on ranks: SIGINT, after 3 s aborted collectives, after 10 s more it's given up."""
    state.mesh(arguments.name).interrupt(arguments.ranks)


def restart(state: State, arguments: Namespace) -> None:
    """Kill ranks and start them anew at their places. What they held is lost; asks, or wants -f."""
    mesh = state.mesh(arguments.name)
    ranks = mesh.select(arguments.ranks)
    one, who = len(ranks) == 1, name_ranks(ranks)
    question = f"what {who} of mesh {mesh.name!r} hold{'s' if one else ''} will be lost. Restart?"
    if not arguments.force and not confirm(question, f"%mesh restart -f --ranks {arguments.ranks}"):
        print("nothing was restarted")
        return
    mesh.restart(ranks)
    again = "runs again, with nothing in it" if one else "run again, with nothing in them"
    print(f"{who} {again}. %mesh heal makes actors and the process group anew")


def heal(state: State, arguments: Namespace) -> None:
    """Put back what is lost: processes at their places, actors, process groups. --replay: also what cells
    had defined there.
    """
    print(state.mesh(arguments.name).heal(replay=arguments.replay))


def resize(state: State, arguments: Namespace) -> None:
    """Give a mesh other sizes: ranks are added, or leave with what they hold; asks then, or wants -f."""
    mesh = state.mesh(arguments.name)
    sizes = arguments.sizes
    fewer = {name: size for name, size in sizes.items() if size < mesh.sizes.get(name, 0)}
    if fewer and not arguments.force:
        given = ",".join(f"{n}={s}" for n, s in sizes.items())
        question = f"ranks of mesh {mesh.name!r} leave, and what they hold is lost. Resize to {given}?"
        if not confirm(question, f"%mesh resize -f {given}"):
            print("nothing was changed")
            return
    print(mesh.resize(**sizes))


def shrink(state: State, arguments: Namespace) -> None:
    """Go on without what is lost: the dimension that costs the fewest living ranks gets smaller."""
    print(state.mesh(arguments.name).shrink())


def on_failure(state: State, arguments: Namespace) -> None:
    """Say what is done when a rank dies: stop (calls raise until you heal it), heal, or shrink."""
    mesh = state.mesh(arguments.name)
    mesh.on_failure(arguments.do, max_restarts=arguments.max_restarts)
    what = {
        "stop": "nothing by itself: %mesh heal",
        "heal": "it is healed by itself",
        "shrink": "the mesh goes on without it",
    }
    print(f"when a rank of mesh {mesh.name!r} dies: {what[arguments.do]}")


def confirm(question: str, otherwise: str) -> bool:
    """Ask; where nobody can answer, say what to type instead.

    Raises:
        MeshUsageError: if there is no stdin.
    """
    try:
        answer = input(f"{question} [y/N] ")
    except (EOFError, NotImplementedError, RuntimeError):  # StdinNotImplementedError is either, by version
        raise MeshUsageError(
            f"{question} Nobody can answer here; this does it without asking: {otherwise}"
        ) from None
    return answer.strip().lower() in ("y", "yes")


def stacks(state: State, arguments: Namespace) -> None:
    """Show where ranks stand: the Python stacks of their threads, equal ones once; also of ranks that
    can't answer. --native: C frames, too.
    """
    print(stacks_text(state.mesh(arguments.name).stacks(arguments.ranks, native=arguments.native)))


def why(state: State, arguments: Namespace) -> HangReport:
    """Say why nothing moves: which ranks wait for what, since when, and which one is the odd one."""
    return state.mesh(arguments.name).why(arguments.ranks)


def stop(state: State, arguments: Namespace) -> None:
    """End a mesh and what its ranks hold. With -f, ranks get no time to clean up."""
    mesh = state.mesh(arguments.mesh)
    if arguments.force:
        session_of(mesh).request(Stop(list(placement_of(mesh).procs), 0.0))
    mesh.stop().get(30)
    on_engine.give_back(mesh.name)
    state.drop(mesh.name)
    print(f"mesh {mesh.name!r} has ended")


def say_what_runs(shell: Any) -> None:
    """Say which meshes run, and what has ended on them unseen. For `%load_ext`."""
    from monarch_nb._client.launch import list_connections
    from monarch_nb.mesh import attach as attach_mesh

    for connection in list_connections():
        note = ""
        try:
            mesh = attach_mesh(connection.name, listens=False)
            note = mesh.journal.missed().summary()
            mesh._session.close()
        except Exception as error:  # whatever is wrong with one mesh, the extension loads
            note = str(error)
        print(
            f"mesh {connection.name!r} runs{': ' + note if note else ''}. Attach: %mesh attach "
            f"{connection.name}"
        )
