"""The data plane of one process: its registrations, its paths, and the threads that move bytes.

Made when first used. Small transfers by a quick path are done in the thread that asks for them, for a
hand-over costs more than they do; others in threads of their own, so that an event loop goes on meanwhile.
Answers to other processes have threads apart from those that wait for answers, so that two processes can't
wait for each other.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from monarch_nb._client import session as sessions
from monarch_nb._transport import process_context
from monarch_nb._transport.transport import Transport
from monarch_nb.exceptions import MeshError, MeshUsageError, PathFailed, RDMAError
from monarch_nb.rdma import broadcasting, segments, staging
from monarch_nb.rdma import handle as handles
from monarch_nb.rdma.batch import Batch, together
from monarch_nb.rdma.broadcast.questions import Fill, Lead
from monarch_nb.rdma.handle import Handle, Owner, this_machine
from monarch_nb.rdma.link import Answer, Answerer, Link, MeshLink
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.path import Job, Path, PathUnavailable, gone
from monarch_nb.rdma.paths import ENCRYPTED, chosen, load_paths, only_encrypted, use_path
from monarch_nb.rdma.question import Done, Drop, Question
from monarch_nb.rdma.regions import Region, Regions
from monarch_nb.rdma.totals import Totals
from monarch_nb.rdma.transfer import Receipt, Transfer

INLINE_BYTES = 256 << 10
"""Maximum number of bytes that a fast path moves at once, in the calling thread."""

MAX_MOVES = 8
MAX_ANSWERS = 64
"""More threads than can ever wait for each other; they are made when needed."""
LEFT = "this process has left its mesh"
T = TypeVar("T")
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


class DataPlane:
    """The data plane of this process. All methods may be called from any thread."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.regions = Regions()
        self.totals = Totals(process_context.rank.page if process_context.rank is not None else None)
        table = self.regions.table
        self._owner = Owner(
            addresses=link.addresses,
            process=handles.PROCESS,
            pid=os.getpid(),
            machine=this_machine(),
            label=link.label,
            host=process_context.hostname(),
            table=(table.fd, table.inode),
        )
        self.closed = False
        self._active: set[Transfer] = set()
        self._paths: dict[str, Path] | None = None
        self._lock = threading.Lock()
        self._moves = ThreadPoolExecutor(MAX_MOVES, "monarch_nb-rdma")
        self._answers = ThreadPoolExecutor(MAX_ANSWERS, "monarch_nb-rdma-answer")
        self.services: dict[str, Answerer] = {
            Drop.to: self._drop_asked, Fill.to: self._fill_asked, Lead.to: self._lead_asked,
        }  # fmt: skip
        """Requests that other processes may make to this one, besides those of its paths."""
        _let_peers_read_us()
        link.serve(self.answer, self.in_background)

    @property
    def owner(self) -> Owner:
        """The description of this process in handles."""
        if self._owner.addresses != self.link.addresses:
            self._owner = replace(self._owner, addresses=self.link.addresses)
        return self._owner

    # --- registering

    def register(self, memory: Memory) -> Handle:
        """Register memory without copying it. The memory is kept alive until the registration is dropped."""
        staging.hold(memory)
        region = self.regions.add(memory, segments.find(memory))
        return Handle(
            owner=self.owner,
            slot=region.slot,
            key=region.key,
            address=memory.address,
            region_bytes=memory.span_bytes,
            layout=memory.layout,
            dtype=memory.dtype,
            kind=memory.kind,
            device=memory.device,
            gpu=memory.gpu,
            read_only=memory.read_only,
            shared=region.shared,
        )

    def drop(self, handle: Handle) -> None:
        """End a registration, here or at its owner. To drop it again has no effect."""
        if not handle.is_ours:
            self.ask(Drop(handle))
            return
        region = self.regions.remove(handle.key)
        if region is None:
            return
        with region.lock:
            for name in list(region.made):
                self.paths[name].forget(region)

    def _drop_asked(self, question: Drop) -> Done:
        if self.regions.holds(question.handle):
            self.drop(question.handle)
        return Done()

    def _fill_asked(self, question: Fill) -> Receipt:
        return broadcasting.to_buffers().fill(self, question)

    def _lead_asked(self, question: Lead) -> Answer:
        return broadcasting.to_mesh().lead_asked(question)

    def region_of(self, handle: Handle) -> Region:
        """Return the region that a handle of this process refers to.

        Raises:
            BufferGone: if it was dropped, or is a handle of another run of this program.
        """
        if handle.owner.process != handles.PROCESS:
            raise gone(
                handle,
                "another process answers in its place: it was started anew, or belongs to another mesh",
            )
        region = self.regions.find(handle.key)
        if region is None:
            raise gone(handle)
        return region

    # --- moving

    @property
    def paths(self) -> dict[str, Path]:
        """All paths of this process by name, the best first."""
        if self._paths is None:
            with self._lock:
                if self._paths is None:
                    self._paths = load_paths(self)
        return self._paths

    def ways(
        self, handle: Handle, local: Memory, forced: str | None, why_not: dict[str, str]
    ) -> Iterator[Path]:
        """Yield the paths that can be tried, the best first; add to `why_not` the reason for each path that
        can't.

        Raises:
            MeshUsageError: if the forced path doesn't exist.
            RDMAError: when no path is left.
        """
        if forced is not None and forced not in self.paths:
            raise MeshUsageError(f"no path is called {forced!r}; there are {', '.join(self.paths)}")
        for name, path in self.paths.items():
            if forced is not None and name != forced:
                continue
            reason = self._forbidden(path, handle) or path.refusal(handle, local)
            if not reason:
                yield path
            elif forced or path.concerns(handle, local):
                why_not[name] = reason
        reasons = "; ".join(f"{name}: {why}" for name, why in why_not.items())
        raise PathFailed(f"no path moves bytes between {self.owner} and {handle}: {reasons}")

    @staticmethod
    def _forbidden(path: Path, handle: Handle) -> str:
        """Return why the settings forbid a path, whether or not it would work; empty if they allow it."""
        if path.encrypts or handle.is_near or not only_encrypted():
            return ""
        return f"it isn't encrypted, and {ENCRYPTED} is set"

    def submit(self, jobs: Sequence[Job], path: str | None = None) -> Transfer:
        """Start several jobs, as one transfer for the caller."""
        path = path or chosen()  # in this thread: another thread has another context
        transfer = Transfer(list(jobs))
        with self._lock:
            self._check_open()
            self._active.add(transfer)
        if len(jobs) == 1 and jobs[0].nbytes <= INLINE_BYTES and self._is_quick(jobs[0], path):
            self._run(transfer, path)
        else:
            try:
                self._moves.submit(self._run, transfer, path)
            except RuntimeError:  # closed at this very moment
                self._check_open()
                raise
        return transfer

    def _is_quick(self, job: Job, forced: str | None) -> bool:
        """Return whether the first path to try needs no answer from another process. Errors in the choice of
        a path are reported by the transfer.
        """
        try:
            return next(self.ways(job.handle, job.local, forced, {})).is_quick(job.handle)
        except RDMAError:
            return True

    def _run(self, transfer: Transfer, forced: str | None) -> None:
        start = time.perf_counter()
        try:
            with use_path(forced):  # the path that the caller has forced
                receipts = Batch(self, transfer.jobs, forced).run()
        except MeshError as error:
            # The message explains everything; only the user's own lines matter.
            transfer.finish(None, RDMAError(LEFT) if self.closed else error.with_traceback(None))
        except BaseException as error:
            transfer.finish(None, error)
        else:
            transfer.finish(together(receipts, time.perf_counter() - start))
        finally:
            self._active.discard(transfer)

    def run(self, job: Job, forced: str | None = None) -> Receipt:
        """Run a transfer in this thread."""
        start = time.perf_counter()
        job.check()
        why_not: dict[str, str] = {}
        for path in self.ways(job.handle, job.local, forced or chosen(), why_not):
            try:
                staging.run(path, job)
            except PathUnavailable as error:
                why_not[path.name] = str(error)
            else:
                break
        receipt = Receipt(job.op, path.name, job.nbytes, time.perf_counter() - start, why_not)
        self.totals.add(receipt)
        return receipt

    # --- requests

    def ask(self, question: Question[T], timeout_s: float = 30.0) -> T:
        """Send a question about a buffer to its owner, and return the answer (of `Path.answer`, by the
        owner's path that the question names).

        Raises:
            BufferGone: if the owner or the buffer is gone.
            RDMAError: if the owner's path raised.
        """
        return self.link.ask(question, timeout_s)

    def answer(self, question: Question[object]) -> object:
        """Return the answer to another process' question."""
        service = self.services.get(question.to)
        if service is not None:
            return service(question)
        return self.paths[question.to].answer(question, self.region_of(question.handle))

    def in_background(self, function: Callable[[], None]) -> bool:
        """Run a function in a thread that answers other processes. Return False if this process is leaving
        its mesh, when no process waits for answers any more.
        """
        try:
            self._answers.submit(function)
        except RuntimeError:
            return False
        return True

    # --- the end

    def _check_open(self) -> None:
        if self.closed:
            raise RDMAError(LEFT)

    def close(self) -> None:
        """End all threads, and cancel running transfers."""
        with self._lock:
            self.closed = True
        for transfer in list(self._active):
            transfer.cancel()
        self._moves.shutdown(wait=False, cancel_futures=True)
        self._answers.shutdown(wait=False, cancel_futures=True)
        for path in (self._paths or {}).values():
            path.close()
        self._moves.shutdown()
        self._answers.shutdown()
        for transfer in list(self._active):  # transfers that hadn't begun
            if not transfer.done():
                transfer.finish(None, RDMAError(LEFT))


def _let_peers_read_us() -> None:
    """Allow other processes of this user to read our memory where Yama would forbid it."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


# --- this process' data plane

_data_plane: DataPlane | None = None
_lock = threading.RLock()


def data_plane() -> DataPlane:
    """Return this process' data plane; a client without a mesh connects first."""
    global _data_plane
    found = _data_plane
    if found is not None and not found.closed and _num_joined == _num_meshes():
        return found
    with _lock:
        return _joined()


_num_joined = 0


def _num_meshes() -> int:
    """Return how many meshes this process is in, or connected to."""
    return (
        1 + len(process_context.guest_transports) if process_context.rank is not None else sessions.num_open()
    )


def _joined() -> DataPlane:
    """Create this process' data plane if it has none, and join the meshes that it hasn't joined yet."""
    global _data_plane, _num_joined
    if _data_plane is not None and not _data_plane.closed and not isinstance(_data_plane.link, MeshLink):
        return _data_plane
    transports = [
        process_context.transport(),
        *(
            process_context.guest_transports
            if process_context.rank is not None
            else sessions.open_transports()
        ),
    ]
    if _data_plane is None or _data_plane.closed:
        _data_plane = DataPlane(_link_of(transports))
    plane, link = _data_plane, _data_plane.link
    assert isinstance(link, MeshLink)
    for transport in transports:
        if not link.knows(transport):
            link.join(transport)
        if not any(getattr(c, "plane", None) is plane for c in transport.on_close):
            transport.on_close.append(_Leaving(plane, link, transport))
    _num_joined = _num_meshes()
    return plane


def _link_of(transports: Sequence[Transport]) -> MeshLink:
    link = MeshLink()
    for transport in transports:
        link.join(transport)
    return link


class _Leaving:
    """A transport closes: with the last one the data plane ends."""

    def __init__(self, plane: DataPlane, link: MeshLink, transport: Transport) -> None:
        self.plane, self._link, self._transport = plane, link, transport

    def __call__(self) -> None:
        if not self._link.leave(self._transport):
            self.plane.close()


def use(new: DataPlane) -> None:
    """Set `new` as this process' data plane, for a process without a mesh."""
    global _data_plane
    _data_plane = new
