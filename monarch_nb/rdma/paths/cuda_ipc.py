"""A path between GPU memory of two processes on one machine: the reader opens the owner's memory and copies
on the GPU, without the host.

torch makes the handle, for it knows where in one of its allocations a tensor lies, and which event has to
pass before others may look. A handle is opened once and kept: opening takes a millisecond. Copies have a
stream of their own, which waits for what was queued before on the stream of whoever asks; between GPUs they
go peer to peer where the devices can. A GPU that this process doesn't see (each rank may have
CUDA_VISIBLE_DEVICES of its own) can be opened, too: CUDA maps its memory for the one we use.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from monarch_nb._protocol.base import Record
from monarch_nb._wire.loaded import loaded
from monarch_nb.exceptions import PathFailed
from monarch_nb.rdma import staging
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.path import READ, Job, Path, PathUnavailable
from monarch_nb.rdma.paths.shm import Peer, ShmPath
from monarch_nb.rdma.question import Question
from monarch_nb.rdma.regions import Region

if TYPE_CHECKING:
    from monarch_nb.rdma.data_plane import DataPlane

MAX_OPEN = 256
NAME = "cuda_ipc"


class SharedStorage(Record, frozen=True):
    """The data that another process needs to open GPU memory.

    Attributes:
        storage: what torch's `_share_cuda_` gives, without the device.
        first: where in the storage the region begins, in bytes.
    """

    storage: tuple[Any, ...]
    first: int


class ShareStorage(Question[SharedStorage], frozen=True):
    """The request for the data that opens a region's GPU memory."""

    to = NAME


class CudaIpcPath(Path):
    """The path that opens GPU memory of another process of this machine, and copies on the GPU."""

    name = NAME
    reaches_gpus = True
    takes_strides = True

    def __init__(self, plane: DataPlane) -> None:
        super().__init__(plane)
        self._open: dict[int, Any] = {}
        """Opened storages of other processes, by the key of the buffer."""
        self._streams: dict[int, Any] = {}
        self._failed: dict[tuple[int, str], str] = {}
        """Why memory of a process' GPU can't be opened, according to an earlier attempt."""
        self._lock = threading.Lock()

    def concerns(self, handle: Handle, local: Memory) -> bool:
        return handle.device != "cpu"

    def refusal(self, handle: Handle, local: Memory) -> str:
        if handle.device == "cpu":
            return "the buffer is in host memory"
        if not handle.is_near:
            return f"{handle.owner.host} is another machine"
        torch = loaded("torch")
        if torch is None or not torch.cuda.is_available():
            return "this process sees no GPU"
        return self._failed.get((handle.owner.process, handle.gpu), "")

    # --- the owner's side

    def answer(self, question: Question[object], region: Region) -> SharedStorage:
        """Return the data that another process needs to open the memory of a region. It's made for each
        request, because torch counts the processes that have the memory open.

        A process that has the memory open keeps it from being freed; it sees in the table, after each copy,
        whether the buffer was dropped.
        """
        return _share(region.memory)

    # --- the requesting side

    def transfer(self, job: Job) -> None:
        import torch

        near = self.plane.paths["shm"]
        assert isinstance(near, ShmPath)
        peer = near.peer(job.handle)
        with peer.table.writing(job.handle.slot):
            self._transfer(torch, peer, job)

    def _transfer(self, torch: Any, peer: Peer, job: Job) -> None:
        peer.check(job.handle)
        torch.cuda.init()
        device = _device_for(torch, job)
        there = self._elements(torch, job.handle, device)
        here = staging.tensor_of_bytes(job.local)
        source, target = (there, here) if job.op == READ else (here, there)
        stream = self._stream(torch, device)
        done = torch.cuda.Event()
        with torch.cuda.device(device), torch.cuda.stream(stream):
            if job.after is not None:
                stream.wait_event(job.after)
            if source.shape != target.shape:
                source = source.reshape(-1).reshape(target.shape)
            target.copy_(source, non_blocking=True)
            done.record(stream)
        self._wait(job, done)
        peer.check(job.handle)

    def _wait(self, job: Job, done: Any) -> None:
        """Wait for the GPU. A started copy can't be cancelled, so its memory stays in use until the copy
        ends.
        """
        try:
            done.synchronize()
        except RuntimeError as error:
            raise PathFailed(f"the GPU copy of {job.handle} failed: {error}") from None
        job.moved(job.nbytes)

    def _stream(self, torch: Any, device: int) -> Any:
        with self._lock:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
            return self._streams[device]

    def _elements(self, torch: Any, handle: Handle, device: int) -> Any:
        """Return a buffer as a tensor of bytes that is mapped into this process."""
        storage, first = self._opened(torch, handle, device)
        layout = handle.layout
        base = torch.empty(0, dtype=torch.uint8, device=f"cuda:{device}")
        return base.set_(
            storage, first + layout.offset, (*layout.shape, layout.itemsize), (*layout.strides, 1)
        )

    def _opened(self, torch: Any, handle: Handle, device: int) -> tuple[Any, int]:
        with self._lock:
            found = self._open.get(handle.key)
        if found is None:
            answer = self.plane.ask(ShareStorage(handle))
            try:
                storage = torch.UntypedStorage._new_shared_cuda(device, *answer.storage)
            except RuntimeError as error:
                reason = f"memory of GPU {handle.gpu} can't be opened here: {str(error).splitlines()[0]}"
                self._failed[handle.owner.process, handle.gpu] = reason
                raise PathUnavailable(reason) from None
            found = (storage, answer.first)
            with self._lock:
                while len(self._open) >= MAX_OPEN:
                    self._open.pop(next(iter(self._open)))
                self._open[handle.key] = found
        return found

    def close(self) -> None:
        self._open.clear()
        self._streams.clear()


def _device_for(torch: Any, job: Job) -> int:
    """Return the index of the local GPU that opens the owner's memory: the owner's GPU, if this process can
    use it.
    """
    ours = _gpus(torch)
    if job.handle.gpu in ours:
        return ours[job.handle.gpu]
    return (
        int(torch.cuda.current_device()) if job.local.is_cpu else int(job.local.device.removeprefix("cuda:"))
    )


def _gpus(torch: Any) -> dict[str, int]:
    """Return the indices of this process' GPUs, by UUID."""
    return {str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())}


def _share(memory: Memory) -> SharedStorage:
    """Return torch's handle of the allocation that holds `memory`, with the offset of the region in it."""
    import torch

    storage = memory.keepalive.untyped_storage()
    # Operations queued before are complete when others look.
    torch.cuda.current_stream(memory.keepalive.device).synchronize()
    _, *rest = storage._share_cuda_()
    return SharedStorage(tuple(rest), memory.address - storage.data_ptr())
