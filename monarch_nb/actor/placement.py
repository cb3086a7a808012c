"""The placement of a mesh's members on processes. Pure: it never changes, and is replaced as a whole when the
mesh's sizes change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from monarch_nb._shape import Extent, Point, Shape, encode_extent
from monarch_nb._wire import address


@dataclass(frozen=True)
class Placement:
    """The processes that a handle stands for, and their layout.

    Attributes:
        all_procs: proc ids of the whole spawn, by base rank; of hosts, those of their host processes.
        shape: which of them the handle stands for, and in what layout.
        group: the name of the processes' spawn; empty for hosts, and for actors.
        hosts: indices in the mesh of the hosts that the whole spawn was started on; empty for actors.
        procs: the proc id at each place of the shape, row-major.
        context: the shape's extent, encoded as it is sent in each call.

    Example:
        >>> whole = Placement((3, 4, 5, 6), Shape.full(Extent(["hosts", "gpus"], [2, 2])), "dev", (0, 1))
        >>> whole.with_shape(whole.shape.slice(hosts=1)).procs
        (5, 6)
    """

    all_procs: tuple[int, ...]
    shape: Shape
    group: str = ""
    hosts: tuple[int, ...] = ()
    procs: tuple[int, ...] = field(init=False, compare=False)
    context: bytes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "procs", tuple(self.all_procs[rank] for rank in self.shape.ranks))
        object.__setattr__(self, "context", encode_extent(self.shape.extent))

    @classmethod
    def of_hosts(cls, hosts: Sequence[int], shape: Shape) -> Placement:
        """Return the placement of hosts: their host processes, laid out in a shape."""
        return cls(tuple(map(address.host_proc, hosts)), shape, hosts=tuple(hosts))

    @property
    def is_whole(self) -> bool:
        """Whether the placement is all of the spawn, each process once."""
        return len(self.procs) == len(self.all_procs)

    @property
    def host_indices(self) -> tuple[int, ...]:
        """Indices in the mesh of the hosts that these processes are on, each once."""
        return tuple(dict.fromkeys(map(address.host_of, self.procs)))

    @property
    def receivers(self) -> list[tuple[int, int]]:
        """Each process with its position, as `Transport.post_all` takes them."""
        return [(proc, slot) for slot, proc in enumerate(self.procs)]

    def point_of(self, proc: int) -> Point:
        """Return the place of a process.

        Raises:
            ValueError: if it isn't among these.
        """
        return self.shape.point(self.procs.index(proc))

    def procs_at(self, positions: Iterable[int]) -> list[int]:
        """Return the proc ids at some positions."""
        return [self.procs[position] for position in positions]

    def positions_by_host(self) -> dict[int, list[int]]:
        """Return the positions on each host, by the host's index."""
        found: dict[int, list[int]] = {}
        for position, proc in enumerate(self.procs):
            found.setdefault(address.host_of(proc), []).append(position)
        return found

    def ranks_among(self, procs: Sequence[int]) -> list[int]:
        """Return the base ranks of those of these processes that are among `procs`."""
        return [rank for rank, proc in zip(self.shape.ranks, self.procs, strict=True) if proc in procs]

    # --- derived placements

    def with_shape(self, shape: Shape) -> Placement:
        """Return the same spawn, restricted or laid out otherwise."""
        return Placement(self.all_procs, shape, self.group, self.hosts)

    def at(self, positions: Sequence[int]) -> Placement:
        """Return the processes at some positions along one dimension, `ranks`."""
        ranks = [self.shape.ranks[position] for position in positions]
        return self.with_shape(Shape(Extent(["ranks"], [len(ranks)]), ranks))
