"""The actions of commands on a mesh: the same for notebooks, terminals, REST and the card's buttons.

Each takes a mesh and what was typed, and returns a result; the table says how that's shown.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from monarch_nb._commands.parser import Namespace
from monarch_nb._protocol.ranks import Stop
from monarch_nb._shape import name_ranks
from monarch_nb._units import duration
from monarch_nb.status import MeshStatus

if TYPE_CHECKING:
    from monarch_nb._client.heal_report import HealReport
    from monarch_nb._commands.sharing import Audit
    from monarch_nb._sync import SyncReceipt
    from monarch_nb._why import HangReport
    from monarch_nb.mesh import Mesh
    from monarch_nb.mesh.environment import EnvironmentDifference
    from monarch_nb.mesh.history import Entries
    from monarch_nb.mesh.shipping import HostsDifference
    from monarch_nb.rdma.doctor.report import Report as DoctorReport

STOP_S = 30.0


# --- life


def status(mesh: Mesh, _arguments: Namespace) -> MeshStatus:
    """Return a mesh's state as text."""
    return mesh.status()


def lease(mesh: Mesh, arguments: Namespace) -> str:
    """Set how long a mesh lives without a client, if a time was typed; return the present setting."""
    if arguments.time is not None:
        mesh.set_lease(arguments.time)
    limit = mesh.status(fresh=False).idle_timeout_s
    return f"mesh {mesh.name!r} ends after {duration(limit or 0)} without a client and a running cell"


def stop(mesh: Mesh, arguments: Namespace) -> str:
    """End a mesh; return hosts of an engine to it."""
    from monarch_nb.actor.handle import placement_of, session_of
    from monarch_nb.mesh import on_engine

    if arguments.force:
        session_of(mesh).request(Stop(list(placement_of(mesh).procs), 0.0))
    mesh.stop().get(STOP_S)
    on_engine.give_back(mesh.name)
    return f"mesh {mesh.name!r} has ended"


def interrupt(mesh: Mesh, arguments: Namespace) -> None:
    """Interrupt the work of ranks."""
    mesh.interrupt(arguments.ranks)


def restart(mesh: Mesh, arguments: Namespace) -> str:
    """Kill ranks and start them again."""
    ranks = mesh.select(arguments.ranks)
    mesh.restart(ranks)
    again = "was restarted, without variables" if len(ranks) == 1 else "were restarted, without variables"
    return (
        f"{name_ranks(ranks)} of mesh {mesh.name!r} {again}. %mesh heal makes actors and the process "
        "group anew"
    )


def lost_by_restart(mesh: Mesh, arguments: Namespace) -> str:
    """Return the description of what a restart destroys."""
    ranks = mesh.select(arguments.ranks)
    return f"what {name_ranks(ranks)} of mesh {mesh.name!r} hold{'s' * (len(ranks) == 1)} will be lost"


def heal(mesh: Mesh, arguments: Namespace) -> HealReport:
    """Repair the losses of a mesh."""
    from monarch_nb._commands.clusters import healed

    return healed(mesh, arguments)


def resize(mesh: Mesh, arguments: Namespace) -> HealReport:
    """Change the sizes of a mesh; return hosts of an engine that have no ranks then."""
    from monarch_nb._commands.clusters import resized

    return resized(mesh, arguments)


def lost_by_resize(mesh: Mesh, arguments: Namespace) -> str:
    """Return the description of what a resize destroys: nothing if no dimension gets smaller."""
    if all(size >= mesh.sizes.get(name, 0) for name, size in arguments.sizes.items()):
        return ""
    return f"ranks of mesh {mesh.name!r} leave, and what they hold is lost"


def grow(mesh: Mesh, arguments: Namespace) -> HealReport:
    """Add hosts or ranks to a mesh."""
    from monarch_nb._commands.clusters import grown

    return grown(mesh, arguments)


def shrink(mesh: Mesh, arguments: Namespace) -> HealReport:
    """Remove hosts or ranks from a mesh, or leave out lost ones."""
    from monarch_nb._commands.clusters import shrunk

    return shrunk(mesh, arguments)


def lost_by_shrink(mesh: Mesh, arguments: Namespace) -> str:
    """Return the description of what a shrink destroys: nothing if only lost ranks are left out."""
    if not (arguments.num or arguments.hosts):
        return ""
    from monarch_nb._commands.clusters import check_shrunk

    check_shrunk(mesh, arguments)
    return f"ranks of mesh {mesh.name!r} leave, and what they hold is lost"


def on_failure(mesh: Mesh, arguments: Namespace) -> str:
    """Set the failure policy of a mesh."""
    mesh.on_failure(arguments.do, max_restarts=arguments.max_restarts)
    what = {
        "stop": "nothing by itself: %mesh heal",
        "heal": "it is healed by itself",
        "shrink": "the mesh goes on without it",
    }
    return f"when a rank of mesh {mesh.name!r} dies: {what[arguments.do]}"


# --- other users


def share(mesh: Mesh, arguments: Namespace) -> str:
    """Share a mesh with another user, or list its members."""
    from monarch_nb._commands import sharing

    return sharing.list_text(mesh) if arguments.list else sharing.share(mesh, arguments)


def unshare(mesh: Mesh, arguments: Namespace) -> str:
    """Revoke the access of another user."""
    from monarch_nb._commands import sharing

    return sharing.unshare(mesh, arguments)


def rekey(mesh: Mesh, arguments: Namespace) -> str:
    """Replace the keys of a mesh."""
    from monarch_nb._commands import sharing

    return sharing.rekey(mesh, arguments)


# --- activity of ranks


def stacks(mesh: Mesh, arguments: Namespace) -> Mapping[int, Mapping[str, Any]]:
    """Return the stacks of ranks."""
    return mesh.stacks(arguments.ranks, native=arguments.native)


def why(mesh: Mesh, arguments: Namespace) -> HangReport:
    """Explain why a mesh makes no progress."""
    return mesh.why(arguments.ranks)


def doctor(mesh: Mesh, arguments: Namespace) -> DoctorReport:
    """Report which transports ranks have for moving bytes."""
    return mesh.doctor(
        arguments.ranks, size_bytes=arguments.size, measures=not arguments.quick, all_paths=arguments.all
    )


def diff_env(mesh: Mesh, arguments: Namespace) -> EnvironmentDifference | HostsDifference:
    """Return the differences between the environments of ranks; with `--hosts`, between the packages of
    hosts.
    """
    if arguments.hosts:
        return mesh.diff_hosts()
    return mesh.diff_env(arguments.ranks, shows_all=arguments.all)


def sync(mesh: Mesh, arguments: Namespace) -> SyncReceipt:
    """Send the workspace; have ranks reload changed modules."""
    return mesh.sync(
        *arguments.paths,
        dry_run=arguments.dry_run,
        include=arguments.include,
        exclude=arguments.exclude,
        same_path=arguments.same_path,
        reload=not arguments.no_reload,
        force=arguments.force,
        env=arguments.env,
        verify=arguments.verify,
        copy=arguments.copy,
        to=arguments.to,
        from_index=None if arguments.source is None else arguments.source == "index",
        watch=arguments.env and bool(getattr(arguments, "watch", False)),
    )


def last_lines(mesh: Mesh, arguments: Namespace) -> str:
    """Return the last lines that ranks have printed."""
    return "\n".join(mesh.last_lines(arguments.ranks))


# --- the journal


def history(mesh: Mesh, arguments: Namespace) -> Entries | Audit:
    """Return the last entries of the journal, or who did what."""
    if arguments.audit:
        from monarch_nb._commands import sharing

        return sharing.audit(mesh, arguments)
    return mesh.history(arguments.last)


def export(mesh: Mesh, arguments: Namespace) -> str:
    """Write the journal's cells to a file; return its name."""
    return str(mesh.journal.export(arguments.file))


def logs(mesh: Mesh, arguments: Namespace) -> None:
    """Write output of ranks to stdout; with `--follow`, until interrupted."""
    texts = mesh.journal.logs(
        mesh.select(arguments.ranks), grep=arguments.grep, tail_bytes=arguments.bytes, follow=arguments.follow
    )
    try:
        for text in texts:
            sys.stdout.write(text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if not arguments.follow:
            raise


# --- hosts of engines


def extend(mesh: Mesh, arguments: Namespace) -> str:
    """Ask the engine for more time; return the remaining time."""
    from monarch_nb.mesh import on_engine

    return "\n".join(on_engine.extend(mesh.name, arguments.time))


def hosts(mesh: Mesh, _arguments: Namespace) -> str:
    """Return the hosts of a mesh as a table."""
    from monarch_nb._commands.clusters import hosts_text

    return hosts_text(mesh)
