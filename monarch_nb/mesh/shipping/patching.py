"""An environment of which some files were edited: hosts make it of a spare of the one that they have, in some
tenths of a second. Whatever stands against that, and it is sent as any other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from monarch_nb._client.session import Session
from monarch_nb._sync.env.edits import Edit
from monarch_nb._sync.env.local import changed
from monarch_nb._sync.env.place import Prefix
from monarch_nb._sync.env.scan import Scanned
from monarch_nb._sync.env.treatment import Treater
from monarch_nb.mesh.shipping.agent import EnvironmentChange
from monarch_nb.mesh.shipping.agents import AGENT_S, agents_on
from monarch_nb.mesh.shipping.report import EnvironmentPart, HostEnvironment
from monarch_nb.mesh.shipping.sending import PLACE_S, switch_zygotes, tried_modules

MAX_BYTES = 4 << 20
"""More than that goes in packs, from host to host."""


def patch_environment(
    session: Session, hosts: Sequence[int], edit: Edit, before: EnvironmentPart
) -> EnvironmentPart | None:
    """Have hosts start ranks in an environment that differs from theirs by some files; None if it must be
    sent as a whole.

    Args:
        before: what was done with the environment that they have.

    Raises:
        FileChanged: if a file has changed meanwhile.
    """
    start = time.monotonic()
    if not _is_small(edit) or not _have(hosts, before):
        return None
    shared = [host for host in hosts if before.hosts[host].is_shared]
    able = [host for host in hosts if host not in shared]
    change = EnvironmentChange(edit.before, edit.changes, _contents(edit) if able else {})
    text, modules = edit.scanned.manifest.text, tried_modules()

    with agents_on(session, able) as agents:
        answers: Mapping[int, Prefix | None] = agents.ask(
            lambda agent: agent.place_changed.call_one(text, change, modules), PLACE_S
        )
        placed = {host: prefix for host, prefix in answers.items() if prefix is not None}
        if len(placed) < len(able):
            return None
        placed_s = time.monotonic() - start
        switched = switch_zygotes(session, agents, edit.scanned, shared, placed)
        lost = agents.trust.lost
    sent_bytes = sum(map(len, change.contents.values()))
    found = {
        host: HostEnvironment(
            prefix=placed[host].root if host in placed else "",
            is_shared=host in shared,
            sent_bytes=sent_bytes if host in placed else 0,
            problem=lost.get(host, ""),
            has_changed=host in switched,
            warnings=before.hosts[host].warnings,
        )
        for host in hosts
    }
    return _part(edit.scanned, found, time.monotonic() - start, placed_s)


def _part(
    scanned: Scanned, hosts: Mapping[int, HostEnvironment], seconds: float, placed_s: float
) -> EnvironmentPart:
    return EnvironmentPart(
        id=scanned.manifest.id,
        num_packages=sum(bool(part.version) for part in scanned.manifest.parts),
        num_bytes=scanned.num_bytes,
        hosts=hosts,
        seconds=seconds,
        left_out=scanned.left_out,
        edited=tuple(sorted(scanned.edited)),
        placed_s=placed_s,
    )


def _is_small(edit: Edit) -> bool:
    return sum(edit.sizes.values()) <= MAX_BYTES


def _have(hosts: Sequence[int], before: EnvironmentPart) -> bool:
    """Say whether all these hosts have the environment as it was."""
    return all(host in before.hosts and not before.hosts[host].problem for host in hosts)


def _contents(edit: Edit) -> dict[str, bytes]:
    treater = Treater(edit.scanned.roots)
    found: dict[str, bytes] = {}
    for sha256, size in edit.sizes.items():
        source = edit.scanned.sources[sha256]
        found[sha256] = treater.read(source).content
        if len(found[sha256]) != size:  # of equal length: the host finds that out
            raise changed(source.file)
    return found


class Spares:
    """The background thread that has hosts make spares of their environments, one environment at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def make(self, session: Session, hosts: Sequence[int], environment: str) -> None:
        """Have hosts make spares of their prefixes of an environment."""
        if hosts:
            self._thread = threading.Thread(
                target=_make_spares,
                args=(session, hosts, environment),
                name="monarch_nb-sync-spare",
                daemon=True,
            )
            self._thread.start()

    def wait(self) -> None:
        """Wait until they're made, or can't be."""
        if self._thread is not None:
            self._thread.join(AGENT_S)
            self._thread = None


def _make_spares(session: Session, hosts: Sequence[int], environment: str) -> None:
    with suppress(Exception):  # the mesh has ended, or there's no room: the next version is sent as a whole
        with agents_on(session, hosts) as agents:
            agents.ask(lambda agent: agent.make_spare.call_one(environment), PLACE_S)


__all__ = ["Spares", "patch_environment"]
