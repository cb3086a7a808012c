"""Device meshes with the engine's own process groups: they need no default process group, and leave the
user's alone.

Private names of torch are used here: a DeviceMesh makes groups of the default one only.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from monarch_nb._rank import collectives, rendezvous
from monarch_nb._rank.tensor.private import (
    ranks_of_groups,
    register_group,
    replace_concatenate,
    resolve_group,
    set_timeout,
    set_up_group,
    torch_concatenate,
    unregister_group,
)  # fmt: skip
from monarch_nb._rank.tensor.protocol import GridDefinition

PURPOSE = "tensors of the mesh"
TIMEOUT_S = 1800.0
MEET_S = 30.0
CONNECT_S = 20.0
"""How long a new group's ranks try to connect. One that dies meanwhile isn't noticed by the others."""
GLOO_TIMES = 5
"""Gloo waits so many times its time-out for a first connection (its `Pair::waitUntilConnected`)."""
POLL_S = 0.002


def device_type() -> str:
    """Return where values of this rank live: "cuda" if it has a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def machine() -> tuple[str, str, int]:
    """Return the name of this host, the device, and its free memory in bytes; of a host's, which its ranks
    share.
    """
    if device_type() == "cuda":
        return socket.gethostname(), "cuda", int(torch.cuda.mem_get_info()[0])
    # Files that were read fill what is unused, and give way: that isn't counted as taken.
    return socket.gethostname(), "cpu", int(psutil.virtual_memory().available)


class OwnMesh(DeviceMesh):  # type: ignore[misc]
    """A device mesh that knows its rank without the default process group.

    It's equal to itself only: DTensor keeps what it has worked out by mesh, and would take the process groups
    of one that is gone.
    """

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or getattr(other, "real_obj", None) is self  # torch.compile's stand-in

    def __deepcopy__(self, memo: Any) -> OwnMesh:
        """Return this mesh: torch.compile copies what it traces with."""
        return self

    def use(self, names: Sequence[str], groups: Sequence[Any]) -> None:
        """Take process groups and their names, one for each axis: the same one for axes of the same ranks."""
        self._dim_group_names = list(names)
        self._pg_registry.update(zip(names, groups, strict=True))
        self._lines: dict[str, OwnMesh] = {}
        self._turned: dict[tuple[str, ...], OwnMesh] = {}
        self._whole: OwnMesh | None = None

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """Return the line of ranks along an axis, as HSDP wants it. Torch's would ask the default group."""
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else mesh_dim_names
        if self.ndim == 1 or len(names) > 1 or names[0] not in self.mesh_dim_names:
            return super().__getitem__(mesh_dim_names)
        if names[0] not in self._lines:
            self._lines[names[0]] = self._line(names[0])
        return self._lines[names[0]]

    def _line(self, name: str) -> OwnMesh:
        axis = self.mesh_dim_names.index(name)
        at = tuple(slice(None) if n == axis else c for n, c in enumerate(self.get_coordinate()))
        made = OwnMesh(
            self.device_type,
            self.mesh[at],
            mesh_dim_names=(name,),
            _init_backend=False,
            _rank=self.get_rank(),
        )
        made.use([self._dim_group_names[axis]], [self.get_group(axis)])
        made._whole = self
        return made

    def turned(self, names: tuple[str, ...]) -> OwnMesh:
        """Return this mesh with its axes in another order; always the same object."""
        if names == self.mesh_dim_names:
            return self
        if names not in self._turned:
            order = [self.mesh_dim_names.index(name) for name in names]
            made = OwnMesh(
                self.device_type, self.mesh.permute(order), mesh_dim_names=names, _init_backend=False,
                _rank=self.get_rank(),
            )  # fmt: skip
            made.use(
                [self._dim_group_names[axis] for axis in order], [self.get_group(axis) for axis in order]
            )
            self._turned[names] = made
        return self._turned[names]

    def get_rank(self) -> int:
        """Return this process' rank."""
        return int(self._rank)

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return its place along an axis."""
        axis = self.mesh_dim_names.index(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim or 0
        return int(self.get_coordinate()[axis])


def _concatenate(meshes: list[DeviceMesh]) -> DeviceMesh:
    """Return the mesh of several lines' axes. Torch's would ask the default process group for the rank."""
    whole = getattr(meshes[0], "_whole", None)
    if not isinstance(whole, OwnMesh):
        return torch_concatenate(meshes)
    return whole.turned(tuple(name for each in meshes for name in each.mesh_dim_names))


replace_concatenate(_concatenate)


class Meshes:
    """The device meshes of one engine on this rank.

    Args:
        name: of the engine, unique in this process.
        rank: of this process among all of the engine's.
        check: called during waits; raises if waiting is futile.
    """

    def __init__(self, name: str, rank: int, check: Callable[[], None]) -> None:
        self.check = check
        self._name = name
        self.rank = rank
        self.epoch = -1
        self.store: Any = None
        self._abortable: Abortable | None = None
        """The store as groups see it: they keep its part in C only."""
        self._definitions: dict[int, GridDefinition] = {}
        self._groups: dict[str, Any] = {}
        self.by_number: dict[int, OwnMesh] = {}

    @property
    def all_ranks(self) -> list[int]:
        """All ranks of the engine."""
        return sorted({rank for grid in self._definitions.values() for rank in grid.ranks})

    def connect(self, epoch: int, address: tuple[str, int]) -> None:
        """Meet the other ranks at a store; create the groups of all known meshes again there."""
        self._forget()
        self.epoch = epoch
        self.store = rendezvous.join(PURPOSE, *address, MEET_S)
        self._abortable = Abortable(self.store, self.check)
        for grid in self._definitions.values():
            self._make_groups(grid)

    def clear(self) -> None:
        """Forget all meshes."""
        self._forget()
        self._definitions.clear()
        self.by_number.clear()

    def define(self, grid: GridDefinition) -> None:
        """Make a device mesh; all of its ranks do so at the same place of the stream."""
        self.prepare(grid)
        self._make_groups(grid)

    def prepare(self, grid: GridDefinition) -> None:
        """Make a device mesh, unless it's there, without its groups: `connect` makes them."""
        if grid.number in self.by_number:
            return
        self._definitions[grid.number] = grid
        ids = torch.tensor(grid.ranks, dtype=torch.int).view(grid.shape)
        self.by_number[grid.number] = OwnMesh(
            device_type(), ids, mesh_dim_names=grid.names, _init_backend=False, _rank=self.rank
        )

    @contextmanager
    def pair(self, name: str, first: int, second: int) -> Iterator[Any]:
        """Make a process group of two ranks for the time of a block."""
        full = f"{self._name}.{self.epoch}.{name}"
        self._meet(full, (first, second))
        group = self._new_group(full, (first, second))
        try:
            yield group
        finally:
            unregister_group(full)
            ranks_of_groups.pop(group, None)

    def check_registered(self) -> None:
        """Restore names of groups in torch's registry, which the user's `destroy_process_group` has
        emptied.
        """
        for name, group in self._groups.items():
            try:
                resolve_group(name)
            except RuntimeError:
                register_group(name, group)

    def _forget(self) -> None:
        for name, group in self._groups.items():
            unregister_group(name)
            ranks_of_groups.pop(group, None)
        self._groups.clear()
        collectives.set_own_groups(self._name, [], 0)

    def _make_groups(self, grid: GridDefinition) -> None:
        mesh = self.by_number[grid.number]
        if self.rank not in grid.ranks:
            return
        self._meet(f"{self._name}.{self.epoch}.{grid.number}", grid.ranks)
        names = [self._group_of(_line_through(grid, self.rank, axis)) for axis in range(len(grid.shape))]
        mesh.use(names, [self._groups[name] for name in names])
        collectives.set_own_groups(self._name, list(self._groups.values()), len(grid.ranks))

    def _group_of(self, members: Sequence[int]) -> str:
        """Return the name of the process group of these ranks, which all grids share: each one costs memory
        and connections, gloo's a thread that wakes a hundred times a second besides.

        All members are in each grid that asks for it, so they make it at the same place of the stream.
        """
        name = group_name(f"{self._name}.{self.epoch}", members)
        if name not in self._groups:
            self._groups[name] = self._new_group(name, members)
        return name

    def _new_group(self, name: str, members: Sequence[int]) -> Any:
        """Make a process group of some ranks that meet at the store, and register it by its name."""
        place, size = members.index(self.rank), len(members)
        if device_type() == "cuda":
            kind, make, store = dist.ProcessGroup.BackendType.NCCL, _nccl, self.store
        else:
            kind, make, store = dist.ProcessGroup.BackendType.GLOO, _gloo, self._abortable
        prefixed = dist.PrefixStore(f"{name}/", store)
        backend = make(dist.PrefixStore(f"{device_type()}/", prefixed), place, size)
        group = dist.ProcessGroup(prefixed, place, size)
        set_up_group(group, name, PURPOSE, torch.device(device_type()), kind, backend)
        ranks_of_groups[group] = {r: i for i, r in enumerate(members)}
        register_group(name, group)
        return group

    def _meet(self, where: str, ranks: Sequence[int]) -> None:
        """Wait for the others as long as there's hope: they may come much later."""
        self.store.set(f"{where}/{self.rank}", "here")
        assert self._abortable is not None
        self._abortable.wait_for([f"{where}/{rank}" for rank in ranks])


def group_name(prefix: str, members: Sequence[int]) -> str:
    """Return the name of a process group of some ranks, in their order; short, however many they are.

    Args:
        prefix: the engine's name and its epoch.
        members: their ranks.
    """
    digest = hashlib.sha256(",".join(map(str, members)).encode()).hexdigest()
    return f"{prefix}.{len(members)}.{digest[:16]}"


def _line_through(grid: GridDefinition, rank: int, axis: int) -> list[int]:
    """Return the ranks that differ from `rank` in one coordinate only."""
    points = list(itertools.product(*map(range, grid.shape)))
    own = points[grid.ranks.index(rank)]
    rest = own[:axis] + own[axis + 1 :]
    return [r for r, p in zip(grid.ranks, points, strict=True) if p[:axis] + p[axis + 1 :] == rest]


class Abortable(dist.Store):  # type: ignore[misc]
    """A store in which waiting ends as soon as it's futile. Torch's waits in C, which only time ends.

    Args:
        store: the store.
        check: called during waits; raises if they are futile.
    """

    def __init__(self, store: Any, check: Callable[[], None]) -> None:
        super().__init__()
        self._store = store
        self._check = check

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        self._store.set(key, value)

    def get(self, key: str) -> Any:
        """Return a value, once there is one."""
        self.wait([key])
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        """Say whether all these values are there."""
        return bool(self._store.check(keys))

    def add(self, key: str, number: int) -> int:
        """Add to a number; return it."""
        return int(self._store.add(key, number))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait as torch asks for it, for `CONNECT_S` at most."""
        self.wait_for(keys, CONNECT_S)

    def wait_for(self, keys: list[str], limit_s: float = math.inf) -> None:
        """Wait until all these values are there."""
        deadline = time.monotonic() + limit_s
        while not self._store.check(keys):
            self._check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank has set {keys} within {limit_s:g} s")
            time.sleep(POLL_S)


def _gloo(store: Any, place: int, size: int) -> Any:
    """Make gloo's group. It connects all ranks here, for which half an hour would be too much."""
    made = dist.ProcessGroupGloo(store, place, size, timeout=timedelta(seconds=CONNECT_S / GLOO_TIMES))
    set_timeout(made, timedelta(seconds=TIMEOUT_S))
    return made


def _nccl(store: Any, place: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=TIMEOUT_S)
    return dist.ProcessGroupNCCL(store, place, size, options)
