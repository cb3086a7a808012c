"""The environment of this program on the hosts of a mesh: brought there when asked, and before each cell if
it's followed; hosts that join later, or take a lost one's place, get what the others have.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from monarch_nb._display.transfer_bar import show_until_over
from monarch_nb._protocol.environment import GetEnvironments
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.states import HostState
from monarch_nb._shape import name_hosts
from monarch_nb._sync import Part
from monarch_nb._units import elapsed_text
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshError
from monarch_nb.mesh import shipping

if TYPE_CHECKING:
    from monarch_nb._client.session import Session
    from monarch_nb._sync.env import manifest
    from monarch_nb._sync.env.edits import Edit
    from monarch_nb._sync.env.scan import Scanned
    from monarch_nb.mesh.core import Mesh
    from monarch_nb.mesh.shipping.report import EnvironmentPart

BAR_AFTER_S = 1.0
"""What takes longer is shown while it lasts."""
_followed: weakref.WeakKeyDictionary[Session, shipping.FollowedEnvironment] = weakref.WeakKeyDictionary()
"""This program's environment, where hosts of a mesh are to have it as it is."""
_given: weakref.WeakKeyDictionary[Session, Given] = weakref.WeakKeyDictionary()


@dataclass
class Given:
    """An environment that hosts were given.

    Attributes:
        id: of the environment.
        parts: that it consists of, by id.
        copies: whether hosts that see this program's files have a copy, too.
        generations: of the hosts that have it, or can't have it, by index: a host process in the place of a
            lost one has another.
    """

    id: str
    parts: Mapping[str, manifest.Part] = field(repr=False)
    copies: bool
    generations: dict[int, int] = field(default_factory=dict)


class EnvironmentChoice(msgspec.Struct, frozen=True):
    """The choices for bringing the environment of this program to hosts.

    Attributes:
        verify: whether every file here is read.
        copies: whether hosts that see this program's files get a copy, too.
        machines: others than the mesh's hosts, which need `sh` and `tar` only: names for ssh, or commands.
        same_path: whether these get a link to it at the environment's own path.
        watch: whether what is installed or edited from then on goes before the next cell.
        index: whether hosts get what they lack of distributions from their package indexes, as far as that
            is the same; None: if the link to them turns out to be slow.
    """

    verify: bool = False
    copies: bool = False
    machines: tuple[str, ...] = ()
    same_path: bool = False
    watch: bool = False
    index: bool | None = None


def bring(mesh: Mesh, choice: EnvironmentChoice, *, is_dry: bool) -> tuple[Part, ...]:
    """Bring the environment of this program to all hosts that run ranks, and to machines that
    are named; see `Mesh.sync`.
    """
    followed = shipping.FollowedEnvironment(copies=choice.copies) if choice.watch and not is_dry else None
    progress = shipping.Progress()
    over = show_until_over(progress, BAR_AFTER_S)
    others: tuple[Part, ...] = ()
    try:
        if choice.machines:
            others = (
                shipping.send_to(
                    choice.machines, same_path=choice.same_path, dry_run=is_dry, verify=choice.verify,
                    progress=progress,
                ),
            )  # fmt: skip
        part, scanned = shipping.with_scan(
            lambda found: (
                _send(mesh, found, progress, copies=choice.copies, index=choice.index, is_dry=is_dry),
                found,
            ),
            verify=choice.verify,
            follows=followed is not None,
        )
        progress.step(f"{progress.sent_text()} in {elapsed_text(part.seconds)}")
    except BaseException:
        if followed is not None:
            followed.close()
        raise
    finally:
        over()
    if followed is not None:
        stop_following(session_of(mesh))
        followed.sent(session_of(mesh), part, scanned)
        _followed[session_of(mesh)] = followed
    return (part, *others)


def _send(
    mesh: Mesh,
    scanned: Scanned,
    progress: shipping.Progress,
    *,
    copies: bool,
    index: bool | None = None,
    is_dry: bool = False,
    hosts: Sequence[int] = (),
) -> EnvironmentPart:
    """Bring an environment to hosts of a mesh; return also which ranks run another one."""
    generations = _hosts(mesh, hosts)
    part = shipping.send_environment(
        session_of(mesh),
        hosts or list(generations),
        scanned,
        copies=copies,
        dry_run=is_dry,
        index=index,
        progress=progress,
    )
    if not is_dry:
        _note(mesh, scanned, copies, {host: generations[host] for host in part.hosts if host in generations})
    return _with_old_ranks(mesh, part)


def _hosts(mesh: Mesh, joining: Collection[int] = ()) -> dict[int, int]:
    """Return the hosts of a mesh that run ranks, or are going to, and their generations."""
    ours = {*mesh.living().host_indices, *joining}
    rows = session_of(mesh).request(Status()).hosts
    return {r.index: r.generation for r in rows if r.state == HostState.UP and r.index in ours}


def _note(mesh: Mesh, scanned: Scanned, copies: bool, generations: Mapping[int, int]) -> None:
    """Note which hosts were given an environment."""
    given = _given.get(session_of(mesh))
    before = {} if given is None or not _is_same(scanned.parts, given.parts) else given.generations
    _given[session_of(mesh)] = Given(scanned.manifest.id, scanned.parts, copies, {**before, **generations})


def _is_same(parts: Mapping[str, manifest.Part], others: Mapping[str, manifest.Part]) -> bool:
    """Say whether environments are equal but for byte code, which whoever imports something writes."""
    differing = [
        [parts[each] for each in parts.keys() - others],
        [others[each] for each in others.keys() - parts],
    ]
    left, right = (
        {entry for part in several for entry in part.entries if not entry.path.endswith(".pyc")}
        for several in differing
    )
    return left == right


def supply(mesh: Mesh, joining: Collection[int] = ()) -> tuple[int, ...]:
    """Give hosts that have come since what the others have; what can't be is said.

    Costs a request if none has.

    Args:
        joining: hosts on which ranks are going to start.

    Returns:
        the ranks on such hosts that run another environment.
    """
    session = session_of(mesh)
    given = _given.get(session)
    if given is None:
        return ()
    bring_changes(mesh)
    given, generations = _given[session], _hosts(mesh, joining)
    new = [host for host, generation in generations.items() if given.generations.get(host) != generation]
    in_use = session.request(GetEnvironments()) if new else {}
    new = [host for host in new if host not in in_use or in_use[host].id != given.id]
    if not new:
        return ()
    given.generations |= {host: generations[host] for host in new}
    progress = shipping.Progress()
    over = show_until_over(progress, BAR_AFTER_S)
    try:
        lines, old_ranks = shipping.with_scan(lambda scanned: _supply(mesh, scanned, given, new, progress))
    except MeshError as error:
        lines, old_ranks = [f"hosts that have joined lack the environment: {error}"], ()
    finally:
        over()
    print("\n".join(lines), file=sys.stderr)
    return old_ranks


def _supply(
    mesh: Mesh, scanned: Scanned, given: Given, hosts: Sequence[int], progress: shipping.Progress
) -> tuple[list[str], tuple[int, ...]]:
    if not _is_same(scanned.parts, given.parts):
        text = (
            f"{name_hosts(hosts)} joined, and the environment has changed here since the others were sent "
            "it: %mesh sync --env brings what is here to all"
        )
        return [text], ()
    part = _send(mesh, scanned, progress, copies=given.copies, hosts=hosts)
    if (followed := _followed.get(session_of(mesh))) is not None:
        followed.joined(session_of(mesh), part)
    return part.lines(), part.old_ranks


def _patch(mesh: Mesh, edit: Edit, before: EnvironmentPart) -> EnvironmentPart | None:
    """Bring edited files to all hosts that run ranks, if these have the rest."""
    generations = _hosts(mesh)
    part = shipping.patch_environment(session_of(mesh), mesh.living().host_indices, edit, before)
    if part is None:
        return None
    copies = _followed[session_of(mesh)].copies
    _note(mesh, edit.scanned, copies, {h: generations[h] for h in part.hosts if h in generations})
    return _with_old_ranks(mesh, part)


def _with_old_ranks(mesh: Mesh, part: EnvironmentPart) -> EnvironmentPart:
    changed = {host for host, each in part.hosts.items() if each.has_changed}
    living = mesh.living_ranks()
    old = tuple(rank for rank in living if mesh.part([rank]).host_indices[0] in changed)
    idle = frozenset(part.hosts) - set(mesh.living().host_indices)
    return replace(part, old_ranks=old, idle=idle)


def environment_has_changed(session: Session) -> bool:
    """Say whether this program's environment is followed, and isn't any more what hosts were given."""
    followed = _followed.get(session)
    return followed is not None and followed.has_changed()


def bring_changes(mesh: Mesh) -> None:
    """Bring what was installed or edited since to hosts, if the environment is followed; what can't be is
    said, and ranks run what they run.

    Costs some microseconds if nothing was.
    """
    if not environment_has_changed(session_of(mesh)):
        return
    followed, progress = _followed[session_of(mesh)], shipping.Progress()
    over = show_until_over(progress, BAR_AFTER_S)
    try:
        part = followed.bring_changes(
            session_of(mesh),
            lambda scanned: _send(mesh, scanned, progress, copies=followed.copies),
            lambda edit, before: _patch(mesh, edit, before),
        )
    except MeshError as error:
        print(f"the environment has changed, and isn't sent: {error}", file=sys.stderr)
        return
    finally:
        over()
    if part is not None:
        print("\n".join(part.lines()), file=sys.stderr)


def stop_following(session: Session) -> None:
    followed = _followed.pop(session, None)
    if followed is not None:
        followed.close()
