"""A path between CPU memory of two processes on one machine: one copy by a processor, without work by the
owner.

Memory allocated by `rdma.empty` is mapped and copied from. Any other is reached by `process_vm_readv` and
`writev`: the kernel copies from one process' pages to the other's, in one go, however strewn the elements are
(1,024 stretches a call).

Whether the buffer still holds is looked up in the owner's table, before and after; whether the owner still
lives, by a pidfd taken while its table was seen to be its own. So bytes that were read while the buffer went
away are never called good.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from monarch_nb.exceptions import PathFailed
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.layout import Piece, batches
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.path import READ, WRITE, Job, Op, Path, PathUnavailable, gone
from monarch_nb.rdma.table import TableView

if TYPE_CHECKING:
    from monarch_nb.rdma.data_plane import DataPlane

CHUNK_BYTES = 16 << 20
"""Size of a copy between two checks for time-outs and cancellation."""
PARALLEL_BYTES = 8 << 20
"""Size from which several threads copy."""
MAX_STRETCHES = 1024
"""The kernel's limit for one call (IOV_MAX)."""
MAX_COPIERS = 4
HUGE_BYTES = 2 << 20
"""Size of a huge page: the kernel copies them as fast as a processor does, small ones at a third of that."""
_MADV_HUGEPAGE = 14
MAX_PEERS = 256
MAX_MAPS = 64
MAX_SEEN = 1024

_REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)


class _Stretch(ctypes.Structure):
    """The kernel's struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _vm_call(name: str) -> Callable[..., int]:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_ssize_t
    function.argtypes = (
        ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong,
    )  # fmt: skip
    return function  # type: ignore[no-any-return]


_MADVISE = ctypes.CDLL(None).madvise
_MADVISE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_READV = _vm_call("process_vm_readv")
_WRITEV = _vm_call("process_vm_writev")


class Peer:
    """Another process of this machine, with its table of keys, and whether it lives."""

    def __init__(self, handle: Handle) -> None:
        owner = handle.owner
        self._pidfd = os.pidfd_open(owner.pid)
        try:
            self.table = TableView(owner.pid, *owner.table)
        except BaseException:
            os.close(self._pidfd)
            raise

    @property
    def lives(self) -> bool:
        """Whether the process is still running."""
        poll = select.poll()  # a poll object of its own: each belongs to one thread
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def check(self, handle: Handle) -> None:
        """Raise if the buffer or its owner no longer exists."""
        if not self.table.holds(handle.slot, handle.key):
            raise gone(handle)
        if not self.lives:
            raise gone(handle, f"{handle.owner} has ended")

    def __del__(self) -> None:
        if hasattr(self, "table"):
            os.close(self._pidfd)


MAPPED = 0
"""Used instead of a pid if the memory of the other process is mapped here."""


class Lane(NamedTuple):
    """A group of copies that are done in the same way: pieces with addresses for offsets.

    Attributes:
        pid: the other process, or `MAPPED`.
        jobs: transfers that they belong to.
    """

    op: Op
    pid: int
    jobs: list[Job]
    parts: list[Piece]

    def job_of(self, part: Piece) -> Job:
        """Return the job that a piece belongs to."""
        addresses = ((job, job.handle.address) for job in self.jobs)
        return next((j for j, a in addresses if a <= part.there < a + j.handle.region_bytes), self.jobs[0])


class ShmPath(Path):
    """The path that copies between CPU memory of two processes of this machine."""

    name = "shm"
    fuses = True

    def __init__(self, plane: DataPlane) -> None:
        super().__init__(plane)
        self._peers: dict[int, Peer] = {}
        self._maps: dict[int, tuple[mmap.mmap, Handle]] = {}
        self._seen: dict[int, None] = {}
        """Segments that were read once: the mapping is kept from the second time on, since it keeps the
        memory, too.
        """
        self._lock = threading.Lock()
        self._refused = ""
        self._copiers: ThreadPoolExecutor | None = None

    def refusal(self, handle: Handle, local: Memory) -> str:
        if not handle.is_near:
            return f"{handle.owner.host} is another machine"
        if handle.device != "cpu":
            return f"the buffer is on {handle.device}"
        return "" if handle.shared is not None else self._refused

    def is_quick(self, handle: Handle) -> bool:
        return True

    def peer(self, handle: Handle) -> Peer:
        """Return the process that owns a buffer; raise if that process has ended."""
        key = handle.owner.process
        peer = self._peers.get(key)
        if peer is None:
            try:
                peer = Peer(handle)
            except (FileNotFoundError, ProcessLookupError):
                raise gone(handle, f"{handle.owner} has ended, or was started anew") from None
            except PermissionError as error:
                raise PathUnavailable(
                    f"the system forbids access to the memory of {handle.owner}: {error.strerror}"
                ) from None
            with self._lock:
                while len(self._peers) >= MAX_PEERS:
                    # closed by its finalizer when it is no longer used
                    self._peers.pop(next(iter(self._peers)))
                self._peers[key] = peer
        return peer

    def transfer(self, job: Job) -> None:
        self.transfer_together([job])

    def transfer_together(self, jobs: Sequence[Job]) -> None:
        with ExitStack() as writing:
            for job in jobs:
                if job.op == WRITE:
                    writing.enter_context(self.peer(job.handle).table.writing(job.handle.slot))
            self._transfer_together(jobs)

    def _transfer_together(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.peer(job.handle).check(job.handle)
        lanes: dict[tuple[Op, int], Lane] = {}
        kept = []  # until the end no other thread may unmap the source
        for job in jobs:
            base, pid = job.handle.address, job.handle.owner.pid
            if job.handle.shared is not None:
                mapping, base = self._mapped(job.handle)
                kept.append(mapping)
                pid = MAPPED
            elif job.op == READ:
                advise_huge(job.local)
            lane = lanes.setdefault((job.op, pid), Lane(job.op, pid, [], []))
            lane.jobs.append(job)
            lane.parts.extend(
                Piece(base + there, job.local.address + here, n) for there, here, n in job.pieces()
            )
        self._run_lanes(jobs[0], list(lanes.values()))
        for job in jobs:
            self.peer(job.handle).check(job.handle)

    # --- memory that can be mapped

    def map(self, handle: Handle, *, shared: bool) -> mmap.mmap:
        """Map the whole segment that holds a buffer: shared with the owner (`shared`), or copy-on-write."""
        assert handle.shared is not None
        owner, place = handle.owner, handle.shared
        try:
            own = os.open(
                f"/proc/{owner.pid}/fd/{place.fd}", (os.O_RDWR if shared else os.O_RDONLY) | os.O_CLOEXEC
            )
        except OSError as error:
            if error.errno in _REFUSED:
                raise PathUnavailable(
                    f"the system forbids opening memory of {owner}: {error.strerror}"
                ) from None
            raise gone(handle, f"{owner} has freed it, or has ended") from None
        try:
            found = os.fstat(own)
            if found.st_ino != place.inode:
                raise gone(handle, f"{owner} has freed it")
            flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
            return mmap.mmap(own, found.st_size, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(own)

    def _mapped(self, handle: Handle) -> tuple[mmap.mmap, int]:
        """Return a mapping of a buffer's segment, and the address of the buffer's region in it."""
        assert handle.shared is not None
        inode = handle.shared.inode
        with self._lock:
            found = self._maps.pop(inode, None) or (self._map_anew(handle), handle)
            if inode in self._seen:
                self._maps[inode] = found  # the most recently used is last
            self._seen[inode] = None
            while len(self._seen) > MAX_SEEN:
                self._seen.pop(next(iter(self._seen)))
        return found[0], ctypes.addressof(ctypes.c_char.from_buffer(found[0])) + handle.shared.offset

    def _map_anew(self, handle: Handle) -> mmap.mmap:
        """Map a segment, and unmap those whose buffers were dropped, because a mapping keeps memory from
        being freed.
        """
        stale = [inode for inode, (_, h) in self._maps.items() if not self._holds(h)]
        for inode in [*stale, *list(self._maps)[: max(0, len(self._maps) - len(stale) - MAX_MAPS + 1)]]:
            self._maps.pop(inode, None)
        return self.map(handle, shared=True)

    def _holds(self, handle: Handle) -> bool:
        peer = self._peers.get(handle.owner.process)
        return peer is not None and peer.lives and peer.table.holds(handle.slot, handle.key)

    # --- copying

    def _copy(self, lane: Lane, parts: Sequence[Piece]) -> None:
        if lane.pid == MAPPED:
            for far, near, nbytes in parts:
                ctypes.memmove(*((near, far) if lane.op == READ else (far, near)), nbytes)
        else:
            for at in range(0, len(parts), MAX_STRETCHES):
                self._vm_copy(lane, parts[at : at + MAX_STRETCHES])

    def _vm_copy(self, lane: Lane, parts: Sequence[Piece]) -> None:
        num = len(parts)
        far, near = (_Stretch * num)(), (_Stretch * num)()
        for i, part in enumerate(parts):
            far[i] = _Stretch(part.there, part.nbytes)
            near[i] = _Stretch(part.here, part.nbytes)
        call = _READV if lane.op == READ else _WRITEV
        done = call(lane.pid, near, num, far, num, 0)
        if done == sum(part.nbytes for part in parts):
            return
        if done >= 0 and num > 1:  # interrupted in the middle: copied one by one, to find the place
            for part in parts:
                self._vm_copy(lane, [part])
            return
        self._explain(lane.job_of(parts[0]), ctypes.get_errno() if done < 0 else errno.EFAULT)

    def _explain(self, job: Job, code: int) -> None:
        owner = job.handle.owner
        self.peer(job.handle).check(job.handle)
        if code == errno.ESRCH:
            raise job.gone(f"{owner} has ended")
        if code in _REFUSED:
            self._refused = (
                f"the system forbids process_vm_readv ({os.strerror(code)}): kernel.yama.ptrace_scope, or "
                "the container's seccomp profile"
            )
            raise PathUnavailable(self._refused)
        if code == errno.EFAULT and job.op != READ:
            raise PathFailed(
                f"memory of {job.handle} can't be written: it's mapped read-only, or was freed by {owner}"
            )
        raise PathFailed(
            f"memory of {job.handle} can't be read ({os.strerror(code)}): it was freed by {owner} "
            "without drop()"
        )

    # --- in parts

    def _run_lanes(self, lead: Job, lanes: Sequence[Lane]) -> None:
        """Copy in parts of bounded size. Large copies use several threads, because one core can't use the
        whole memory bandwidth.
        """
        cut = [(lane, batch) for lane in lanes for batch in batches(lane.parts, CHUNK_BYTES)]
        total = sum(piece.nbytes for lane in lanes for piece in lane.parts)
        num = min(MAX_COPIERS, len(os.sched_getaffinity(0)), len(cut)) if total >= PARALLEL_BYTES else 1
        todo = iter(cut)
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    found = next(todo, None)
                if found is None:
                    return
                lane, batch = found
                if lane.op == WRITE:  # the owner may be waiting for this copy to stop
                    handle = lane.job_of(batch[0]).handle
                    self.peer(handle).check(handle)
                self._copy(lane, batch)
                with lock:
                    lead.moved(sum(piece.nbytes for piece in batch))

        helpers = [self._pool().submit(work) for _ in range(num - 1)]
        try:
            work()
        except BaseException:
            with lock:
                todo = iter(())
            raise
        finally:
            for helper in helpers:
                helper.exception()  # wait: after this call nothing touches the memory
        for helper in helpers:
            helper.result()

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._copiers is None:
                self._copiers = ThreadPoolExecutor(MAX_COPIERS, "monarch_nb-rdma-copy")
            return self._copiers

    def close(self) -> None:
        if self._copiers is not None:
            self._copiers.shutdown()
        self._maps.clear()
        self._peers.clear()


def advise_huge(memory: Memory) -> None:
    """Ask the kernel for huge pages in memory whose pages weren't touched yet, such as a new destination of a
    read.
    """
    start = -(-memory.address // HUGE_BYTES) * HUGE_BYTES
    length = (memory.address + memory.span_bytes) // HUGE_BYTES * HUGE_BYTES - start
    if memory.is_cpu and length > 0:
        _MADVISE(start, length, _MADV_HUGEPAGE)  # may be refused: then pages stay small
