"""The changes of a mesh's state: computed by the publisher, applied by displays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType, defstruct, structs

from monarch_nb._protocol.base import Record
from monarch_nb.status.model import HostStatus, MeshHead, MeshStatus, RankStatus

if TYPE_CHECKING:

    class HeadChange(MeshHead, frozen=True):
        """The changed fields of a `MeshHead`; unchanged ones are unset."""

else:
    HeadChange = defstruct(
        "HeadChange",
        [(field.name, field.type | UnsetType, UNSET) for field in structs.fields(MeshHead)],
        bases=(Record,),
        frozen=True,
        module=__name__,
    )

HEAD_FIELDS = tuple(field.name for field in structs.fields(MeshHead))


class FullStatus(Record, frozen=True, tag="status", tag_field="type"):
    """The complete state of a mesh."""

    status: MeshStatus


class StatusDelta(Record, frozen=True, tag="delta", tag_field="type"):
    """The change of a mesh's state: changed fields of the mesh, and complete rows of hosts and ranks."""

    mesh: HeadChange
    hosts: tuple[HostStatus, ...] = ()
    ranks: tuple[RankStatus, ...] = ()


StatusChange = FullStatus | StatusDelta


class Versioned:
    """A mesh's state in rows, each with the number of its last change, so that the changes since a given
    number are found without comparing states.

    Args:
        order: the keys of the ranks' rows, in order.
        reset_at: number of the change before which all is to be sent anew.

    Example:
        >>> from monarch_nb._protocol.states import RankState
        >>> versioned = Versioned((7,))
        >>> versioned.put_rank(7, RankStatus(0, 0, 123, RankState.IDLE))
        >>> seen = versioned.version
        >>> versioned.put_rank(7, RankStatus(0, 0, 123, RankState.BUSY))
        >>> [rank.state for rank in versioned.changed_since(seen).ranks]
        ['busy']
    """

    def __init__(self, order: tuple[int, ...], reset_at: int = 0) -> None:
        self.order = order
        self.reset_at = self.version = reset_at
        self._head: MeshHead | None = None
        self._head_versions: dict[str, int] = {}
        self._hosts: dict[int, HostStatus | None] = {}
        self._ranks: dict[int, RankStatus] = {}
        self._host_versions: dict[int, int] = {}
        self._rank_versions: dict[int, int] = {}

    def put_head(self, head: MeshHead) -> None:
        """Take the fields of the mesh as a whole."""
        before, self._head = self._head, head
        if before == head:
            return
        for name in HEAD_FIELDS:
            if before is None or getattr(before, name) != getattr(head, name):
                self.version += 1
                self._head_versions[name] = self.version

    def change_head(self, change: HeadChange) -> None:
        """Take fields of it that have changed."""
        new = {name: value for name, value in structs.asdict(change).items() if value is not UNSET}
        if self._head is not None and new:
            self.put_head(structs.replace(self._head, **new))

    def put_host(self, index: int, row: HostStatus | None) -> None:
        """Take a host's row; None: there's no such host."""
        if self._hosts.get(index) != row:
            self.version += 1
            self._hosts[index], self._host_versions[index] = row, self.version

    def put_rank(self, key: int, row: RankStatus) -> None:
        """Take a rank's row."""
        if self._ranks.get(key) != row:
            self.version += 1
            self._ranks[key], self._rank_versions[key] = row, self.version

    def put_rows(self, hosts: Iterable[HostStatus], ranks: Iterable[RankStatus]) -> None:
        """Take rows; ranks are known by their number."""
        for host in hosts:
            self.put_host(host.index, host)
        for rank in ranks:
            self.put_rank(rank.rank, rank)

    def unseen_changes(self, seen: int) -> StatusChange | None:
        """Return the changes since change number `seen` (-1: all), or None."""
        if self.version <= seen:
            return None
        return FullStatus(self.full()) if seen < self.reset_at else self.changed_since(seen)

    def full(self) -> MeshStatus:
        """Return the whole status."""
        return MeshStatus(
            **{name: getattr(self._head, name) for name in HEAD_FIELDS},
            hosts=tuple(row for row in self._hosts.values() if row is not None),
            ranks=tuple(self._ranks[key] for key in self.order),
        )

    def changed_since(self, seen: int) -> StatusDelta:
        """Return the changes since change number `seen`."""
        head = {
            name: getattr(self._head, name) for name, version in self._head_versions.items() if version > seen
        }
        hosts = (self._hosts[i] for i, version in self._host_versions.items() if version > seen)
        return StatusDelta(
            HeadChange(**head),
            tuple(row for row in hosts if row is not None),
            tuple(self._ranks[key] for key, version in self._rank_versions.items() if version > seen),
        )


def apply(status: MeshStatus | None, change: StatusChange) -> MeshStatus:
    """Return a mesh's state with a change applied; the first one there is says all of it.

    Raises:
        ValueError: if the change needs a state before it, and there's none.
    """
    if isinstance(change, FullStatus):
        return change.status
    if status is None:
        raise ValueError("the first change of a mesh's state has all of it: apply that first")
    hosts = {h.index: h for h in (*status.hosts, *change.hosts)}
    ranks = {r.rank: r for r in (*status.ranks, *change.ranks)}
    new = {name: value for name, value in structs.asdict(change.mesh).items() if value is not UNSET}
    return structs.replace(
        status,
        **new,
        hosts=tuple(hosts[i] for i in sorted(hosts)),
        ranks=tuple(ranks[i] for i in sorted(ranks)),
    )
