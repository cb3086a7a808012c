"""`RDMABuffer`: memory that other processes may read and write. The handle travels in messages, the bytes by
the best path.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from monarch_nb._units import size_text
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.rdma import broadcasting, staging
from monarch_nb.rdma.data_plane import data_plane
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.local_future import LocalFuture
from monarch_nb.rdma.memory import Local, Memory, memory_of
from monarch_nb.rdma.path import READ, WRITE, Job, Op
from monarch_nb.rdma.paths import chosen
from monarch_nb.rdma.paths.shm import ShmPath
from monarch_nb.rdma.transfer import Transfer

if TYPE_CHECKING:
    from monarch_nb.actor.future import Future
    from monarch_nb.rdma.broadcast.buffers import BroadcastReceipt

DEFAULT_TIMEOUT_S = 60.0


class RDMABuffer:
    """A handle on memory of the process that made it. Copies nothing; sending it sends the handle.

    The memory is kept until `drop()`: it can't be freed beneath those who read it. After that, and when the
    owner has ended or was started anew, they get a `BufferGone`.

    Args:
        data: a `torch.Tensor` (CPU or CUDA), a `numpy.ndarray`, or an object with the buffer protocol; of any
            dtype, shape and strides.

    Raises:
        MeshUsageError: if `data` has no memory of its own.

    Example:
        >>> class Server(Actor):                                    # doctest: +SKIP
        ...     def __init__(self):
        ...         self.weights = torch.rand(1000, 1000)
        ...     @endpoint
        ...     def handle(self):
        ...         return RDMABuffer(self.weights)
        >>> buffer = server.handle.call_one().get()                 # doctest: +SKIP
        >>> mine = torch.empty(1000, 1000)                          # doctest: +SKIP
        >>> print(buffer.read_into(mine).get())                     # doctest: +SKIP
        read 3.815 MiB by shm in 402 us, 9.95 GB/s
    """

    __slots__ = ("_handle",)

    def __init__(self, data: Local) -> None:
        self._handle = data_plane().register(memory_of(data, "data"))

    @classmethod
    def _of(cls, handle: Handle) -> RDMABuffer:
        buffer = cls.__new__(cls)
        buffer._handle = handle
        return buffer

    def __reduce__(self) -> tuple[Any, ...]:
        handle = self._handle
        if handle.is_ours:  # this program may have connected to further meshes since
            handle = replace(handle, owner=data_plane().owner)
        return RDMABuffer._of, (handle,)

    # --- moving bytes

    def read_into(
        self, dst: Local, timeout: float | None = DEFAULT_TIMEOUT_S, *, path: str | None = None
    ) -> Transfer:
        """Copy the buffer into local memory. The transfer starts at once; `.get()` or `await` the result.

        Args:
            dst: memory of the same number of bytes, on CPU or GPU. Its shape and dtype don't matter; elements
                are copied in the array's order.
            timeout: seconds that the transfer may take; None: no limit.
            path: use this path and no other (`shm`, `cuda_ipc`, `verbs`, `tcp`).

        Raises:
            MeshUsageError: if `dst` has another size, or can't be written.
        """
        return self._move(READ, dst, timeout, path)

    def write_from(
        self, src: Local, timeout: float | None = DEFAULT_TIMEOUT_S, *, path: str | None = None
    ) -> Transfer:
        """Copy local memory into the buffer. Arguments and errors as of `read_into`."""
        return self._move(WRITE, src, timeout, path)

    def _move(self, op: Op, local: Local, timeout: float | None, path: str | None) -> Transfer:
        return data_plane().submit([make_job(op, self, local, timeout)], path)

    def read(self, timeout: float | None = DEFAULT_TIMEOUT_S) -> Any:
        """Return a copy of the buffer, of the type it was made from: a tensor, an array or a bytearray."""
        __tracebackhide__ = True
        fresh = self._fresh()
        self.read_into(fresh, timeout).get()
        return fresh

    def _fresh(self) -> Any:
        handle = self._handle
        shape = handle.layout.shape
        if handle.kind == "bytes":
            return bytearray(handle.nbytes)
        if handle.kind == "array":
            import numpy

            return numpy.empty(shape, handle.dtype)
        import torch

        return torch.empty(shape, dtype=getattr(torch, handle.dtype))

    def map(self, *, shared: bool = False) -> Any:
        """Return the buffer itself, without a copy, if its memory was allocated by `rdma.empty` on this
        machine.

        The result is a tensor (or array) in the owner's memory. It stays valid when the buffer is dropped,
        and shows what the owner writes.

        Args:
            shared: writes to the result are seen by the owner and all other processes. Otherwise the mapping
                is copy-on-write: a page that is written to becomes private.

        Raises:
            MeshUsageError: if the memory was not allocated by `rdma.empty`, or is another machine's.
            BufferGone: if the buffer was dropped, or its owner has ended.
        """
        handle = self._handle
        if handle.shared is None or not handle.is_near:
            why = (
                f"{handle.owner.host} is another machine"
                if not handle.is_near
                else "its memory was not allocated by rdma.empty(...)"
            )
            raise MeshUsageError(f"{self!r} can't be mapped: {why}; read_into() copies it")
        if shared and handle.read_only:
            raise MeshUsageError(f"{self!r} is read-only: map it without shared=True")
        mapping = self._mapping(shared)
        return _strided_view(mapping, handle)

    def _mapping(self, shared: bool) -> mmap.mmap:
        path = data_plane().paths["shm"]
        assert isinstance(path, ShmPath)
        if not self._handle.is_ours:
            path.peer(self._handle).check(self._handle)
        else:
            data_plane().region_of(self._handle)
        return path.map(self._handle, shared=shared)

    def broadcast_into(
        self, to: Any, name: str | None = None, timeout: float | None = DEFAULT_TIMEOUT_S
    ) -> Future[BroadcastReceipt]:
        """Copy the buffer to many processes. Receivers pass the bytes on, so that N machines have them after
        about log N steps.

        Args:
            to: buffers of the same size (a list, or the ValueMesh of a call), which are written; or a mesh of
                processes.
            name: with a mesh: the variable of its cells that the array is assigned to. Ranks of one machine
                share the memory, copy-on-write. A busy rank has the variable once its cell is done.
            timeout: seconds that the whole broadcast may take; None: no limit.

        Raises:
            MeshUsageError: if a size differs, or a destination can't be written.
            TransferTimeout: if a rank was busy until the time was up.

        Example:
            >>> print(weights.broadcast_into(generator.buffers.call().get()).get())   # doctest: +SKIP
            512 MiB to 16 in 1.1 s; copies: 2 by verbs, 14 by shm
            >>> weights.broadcast_into(mesh, "weights").get()                         # doctest: +SKIP
        """
        deadline_of(timeout)  # invalid arguments raise at once
        if isinstance(to, ProcMesh):
            if name is None or not name.isidentifier():
                raise MeshUsageError(
                    f"broadcast_into(mesh, name): name is the variable that the ranks get, not {name!r}"
                )
            return broadcasting.to_mesh().begin_broadcast(self, to, name, timeout)
        if name is not None:
            raise MeshUsageError("a name goes with a mesh; buffers have their memory already")
        return broadcasting.to_buffers().begin_spread(
            self, to.values() if hasattr(to, "values") else to, timeout
        )

    # --- the registration

    def drop(self) -> LocalFuture[None]:
        """End the registration: later reads and writes raise `BufferGone`, and the memory may be freed. Any
        process that has the handle may call this.

        On the owner the registration has ended when this returns; elsewhere, `.get()` or `await` the result
        to be sure.
        """
        plane = data_plane()
        if self._handle.is_ours:
            plane.drop(self._handle)
            return LocalFuture.done_with(None)
        return LocalFuture.of(lambda: plane.drop(self._handle))

    def __getitem__(self, index: Any) -> RDMABuffer:
        """Return a handle of a part of the buffer, indexed like the array, by integers and slices. The part
        shares the registration.

        >>> RDMABuffer(bytearray(10))[2:8].size()        # doctest: +SKIP
        6
        """
        return RDMABuffer._of(self._handle.part(index))

    # --- description

    def size(self) -> int:
        """Return the size of the buffer in bytes."""
        return self._handle.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each dimension."""
        return self._handle.layout.shape

    @property
    def dtype(self) -> str:
        """The name of the element type, such as `float32`."""
        return self._handle.dtype

    @property
    def device(self) -> str:
        """The device of the memory, as numbered by its owner: `cpu`, `cuda:0`."""
        return self._handle.device

    @property
    def owner(self) -> str:
        """The process that owns the memory: rank, pid and host."""
        return str(self._handle.owner)

    @property
    def backend(self) -> str:
        """The path that a transfer between the owner and this process would take: `shm`, `cuda_ipc`, `verbs`
        or `tcp`.
        """
        return self.why()[0]

    def why(self) -> tuple[str, dict[str, str]]:
        """Return the path that a transfer would take, and the reason why each better path can't be used."""
        here = memory_of(bytearray(1))
        why_not: dict[str, str] = {}
        return next(data_plane().ways(self._handle, here, chosen(), why_not)).name, why_not

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a buffer of one element without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<RDMABuffer {self._handle}, {size_text(self.size())}>"


def handle_of(buffer: RDMABuffer) -> Handle:
    """Return the buffer's handle for the data plane: owner, location and size of the memory."""
    return buffer._handle


def make_job(op: Op, buffer: RDMABuffer, local: Local, timeout: float | None) -> Job:
    """Validate the arguments of a transfer, and return its job.

    Raises:
        MeshUsageError: if sizes differ, or the destination is read-only.
    """
    handle = buffer._handle
    memory = memory_of(local, "dst" if op == READ else "src")
    if memory.nbytes != handle.nbytes:
        raise MeshUsageError(_size_mismatch(op, handle, memory))
    if op == READ and memory.read_only:
        raise MeshUsageError(
            f"dst is read-only ({memory.kind} of {size_text(memory.nbytes)}); read into a bytearray, "
            "array or tensor"
        )
    if op == WRITE and handle.read_only:
        raise MeshUsageError(f"the buffer {handle} is read-only: it was made of memory that can't be written")
    return Job(op, handle, memory, deadline_of(timeout), after=staging.queued_work(memory))


def deadline_of(timeout: float | None) -> float | None:
    """Return the deadline `timeout` seconds from now, as a value of `time.monotonic`; None for no deadline.

    Raises:
        MeshUsageError: if `timeout` isn't a positive number.
    """
    if timeout is None:
        return None
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise MeshUsageError(
            f"timeout={timeout!r}: a time-out is a number of seconds above 0, or None for no limit"
        )
    return time.monotonic() + timeout


def _size_mismatch(op: Op, handle: Handle, memory: Memory) -> str:
    name = "dst" if op == READ else "src"
    hint = (
        f"; take a part of the buffer: buffer[:{len(memory.layout.shape) and memory.layout.shape[0]}]"
        if _fits_a_part(handle, memory)
        else ""
    )
    return (
        f"{name} has {memory.nbytes:,} bytes ({_shape_text(memory.layout.shape, memory.dtype)}), the "
        f"buffer has {handle.nbytes:,} ({_shape_text(handle.layout.shape, handle.dtype)}): they must "
        f"be equal{hint}"
    )


def _fits_a_part(handle: Handle, memory: Memory) -> bool:
    ours, theirs = memory.layout.shape, handle.layout.shape
    return bool(ours) and len(ours) == len(theirs) and ours[1:] == theirs[1:] and ours[0] < theirs[0]


def _shape_text(shape: tuple[int, ...], dtype: str) -> str:
    return f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}"


def _strided_view(mapping: mmap.mmap, handle: Handle) -> Any:
    assert handle.shared is not None
    layout = handle.layout
    first = handle.shared.offset + layout.offset
    if handle.kind == "tensor":
        import torch

        flat = (
            torch.frombuffer(mapping, dtype=getattr(torch, handle.dtype), offset=first)
            if handle.nbytes
            else torch.empty(0)
        )
        return flat.as_strided(layout.shape, tuple(s // layout.itemsize for s in layout.strides))
    import numpy

    return numpy.ndarray(layout.shape, handle.dtype, mapping, first, layout.strides)
