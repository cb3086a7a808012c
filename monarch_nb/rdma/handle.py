"""Describes a buffer in messages: its owner, its location, and the key that shows whether it still exists.

Three numbers make a handle safe to keep. `process` names one run of one program, so that a rank that was
respawned, or another program with its pid, is not mistaken for the owner. `key` names one registration; the
owner's table (`table.py`) has it as long as the memory is registered. A path looks at both before it moves
bytes, and again afterwards.
"""

from __future__ import annotations

import functools
import os
import secrets
from dataclasses import dataclass, replace
from typing import Any, Literal

from monarch_nb._wire.mesh_address import APART
from monarch_nb.rdma.layout import Layout

MemoryKind = Literal["tensor", "array", "bytes"]
"""Kind of object that memory was made from."""
PROCESS = secrets.randbits(63)
"""Random number of this run of the program. A fork draws anew (`_drawn_anew`)."""


def _drawn_anew() -> None:
    global PROCESS
    PROCESS = secrets.randbits(63)
    this_machine.cache_clear()


os.register_at_fork(after_in_child=_drawn_anew)


@functools.cache
def this_machine() -> str:
    """Return an id that two processes have in common if they can access each other's memory: same kernel,
    same pid namespace, same user.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{os.getuid()}/{os.environ.get(APART, '')}"


Addresses = tuple[tuple[str, int], ...]
"""Meshes, with the proc id in each."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that memory belongs to.

    Attributes:
        addresses: its proc id in each mesh that it's in.
        process: identifies this run of the process.
        pid: on `machine`.
        machine: see `this_machine`.
        label: name for people: `rank 3`.
        host: its host's name.
        table: descriptor and inode of its table of keys, in that process.
    """

    addresses: Addresses
    process: int
    pid: int
    machine: str
    label: str
    host: str
    table: tuple[int, int]

    @property
    def proc(self) -> int:
        """The owner's proc id in the first of its meshes."""
        return self.addresses[0][1]

    def __str__(self) -> str:
        return f"{self.label} (pid {self.pid} on {self.host})"


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory that other processes can map: descriptor and inode in the owner's process, and the offset of the
    region in it.
    """

    fd: int
    inode: int
    offset: int


@dataclass(frozen=True, slots=True)
class Handle:
    """A registered region, or a part of it.

    Attributes:
        owner: owner of the memory.
        slot, key: its line in the owner's table of keys.
        address: of the region, in the owner's address space (on its device).
        region_bytes: length of the region.
        layout: where the elements lie, in bytes from `address`.
        dtype: name of the element type, as torch and numpy know it: `float32`.
        kind: kind of object that it was made from.
        device: `cpu`, or `cuda:0` as the owner counts.
        gpu: the GPU's UUID.
        read_only: whether it may not be written.
        shared: where other processes can map it, if they can.
    """

    owner: Owner
    slot: int
    key: int
    address: int
    region_bytes: int
    layout: Layout
    dtype: str
    kind: MemoryKind
    device: str = "cpu"
    gpu: str = ""
    read_only: bool = False
    shared: Shared | None = None

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self.layout.nbytes

    @property
    def is_near(self) -> bool:
        """Whether the owner runs on this machine, and this process can access its memory."""
        return self.owner.machine == this_machine()

    @property
    def is_ours(self) -> bool:
        """Whether this process is the owner."""
        return self.owner.process == PROCESS

    def at(self, layout: Layout) -> Handle:
        """Return a handle of the same region with another layout."""
        return replace(self, layout=layout)

    def part(self, index: Any) -> Handle:
        """Return the handle of a part, indexed like an array."""
        return replace(self, layout=self.layout[index])

    def __str__(self) -> str:
        shape = "x".join(map(str, self.layout.shape)) or "scalar"
        return f"{shape} {self.dtype} on {self.device} of {self.owner}"
