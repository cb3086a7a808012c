"""The path by RDMA to another machine's memory: NICs read and write it, and the owner's process does nothing.

    library           pyverbs, wherever it is
    device            the machine's NICs, as its kernel describes them
    port              which of them to take, and which of their addresses
    nic               an opened NIC
    gpu               GPU memory that a NIC reaches
    memory            local memory that stays registered
    queue             queue pairs
    connection        posting, and waiting
    routes            connections to other processes, kept for the next transfer
    plan              how a transfer is cut
    mover             a transfer
    owner             the owner's answers
    errors            what goes wrong, in words
    report            what there is, for people

Keys and addresses of queue pairs travel in the mesh's own messages. A connection serves one transfer at a
time, so that one that fails or is given up takes no other with it; it's closed then, and the next transfer
makes a new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from monarch_nb.exceptions import BufferGone, PathFailed, RDMAError
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.path import READ, Job, Path, PathUnavailable
from monarch_nb.rdma.paths.verbs import device as verbs_device
from monarch_nb.rdma.paths.verbs import gpu as verbs_gpu
from monarch_nb.rdma.paths.verbs.connection import BOUNCE_BYTES
from monarch_nb.rdma.paths.verbs.errors import RETRY_EXCEEDED, CompletionError, VerbsError, blocked_text
from monarch_nb.rdma.paths.verbs.library import LibraryMissing
from monarch_nb.rdma.paths.verbs.memory import LocalMemories
from monarch_nb.rdma.paths.verbs.mover import Local, Mover, Target
from monarch_nb.rdma.paths.verbs.nic import Nic, Nics
from monarch_nb.rdma.paths.verbs.owner import OwnerSide, port_for
from monarch_nb.rdma.paths.verbs.questions import Connected, IsAlive, Refused, Register
from monarch_nb.rdma.paths.verbs.report import unavailable_reason
from monarch_nb.rdma.paths.verbs.routes import ASK_S, Route, Routes
from monarch_nb.rdma.question import Done, Question

if TYPE_CHECKING:
    from monarch_nb.rdma.data_plane import DataPlane
    from monarch_nb.rdma.regions import Region

T = TypeVar("T")
ALIVE_S = 15.0
"""Time limit for an owner's answer after an error."""
SILENCE_S = 2.0
"""Time without completions after which the owner is asked whether it still lives."""
AVOID_S = 60.0
"""How long a process that couldn't be reached isn't tried again."""
CLOSE_S = 10.0
MAX_TARGETS = 4096
MAX_AVOIDED = 1024


class VerbsPath(Path):
    """The path by which NICs read and write the memory of another machine."""

    name = "verbs"

    def __init__(self, plane: DataPlane) -> None:
        super().__init__(plane)
        self.nics = Nics()
        self.owner_side = OwnerSide(plane, self.nics)
        self._memories: dict[str, LocalMemories] = {}
        self._targets: dict[tuple[int, str], Target] = {}
        self.routes = Routes(self._ask, lambda: plane.owner)
        self._avoided: dict[tuple[int, str], tuple[float, str]] = {}
        self._num_busy = 0
        self._closing = False
        self._state = threading.Condition()

    @property
    def reaches_gpus(self) -> bool:  # type: ignore[override]
        """Whether NICs can access the memory of this process' GPUs."""
        return not unavailable_reason() and not verbs_gpu.why_not()

    def refusal(self, handle: Handle, local: Memory) -> str:
        why = unavailable_reason()
        if why:
            return why
        for gpu in ("", handle.gpu):
            until, reason = self._avoided.get((handle.owner.process, gpu), (0.0, ""))
            if time.monotonic() < until:
                return reason
        return ""

    # --- a transfer

    def transfer(self, job: Job) -> None:
        with self._busy():
            try:
                self._transfer(job)
            except (VerbsError, LibraryMissing) as error:
                raise (
                    PathFailed(f"verbs: {error}") if job.done_bytes else PathUnavailable(str(error))
                ) from error

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Count a transfer within the block, for `close` to wait for."""
        with self._state:
            if self._closing:
                raise PathUnavailable("this process is leaving its mesh")
            self._num_busy += 1
        try:
            yield
        finally:
            with self._state:
                self._num_busy -= 1
                self._state.notify_all()

    def _transfer(self, job: Job) -> None:
        ports = verbs_device.usable_ports()
        if not ports:
            raise PathUnavailable(unavailable_reason())
        nic = self.nics.get(port_for(job.local, ports))
        target = self._target(job, nic)
        if not self._run(job, nic, target, self.routes.take_route(job, nic, target.port)):
            # The owner has closed an idle connection, or its host was unreachable for a while.
            self.routes.close_idle(job.handle.owner.process)
            self._run(job, nic, target, self.routes.connect(job, nic, target.port))

    def _run(self, job: Job, nic: Nic, target: Target, route: Route) -> bool:
        """Run a job. Return False if nothing was moved over a connection that had worked before."""
        was_used = route.was_used
        try:
            self._move(job, nic, target, route)
        except CompletionError as error:
            self.routes.drop(route)
            if was_used and error.status == RETRY_EXCEEDED and not job.done_bytes:
                return False
            raise self._explained(job, nic, error) from None
        except BaseException:
            if route.connection.is_good and not route.connection.num_posted:
                self.routes.give_back(route)
            else:
                self.routes.drop(route)
            raise
        self.routes.give_back(route)
        return True

    def _move(self, job: Job, nic: Nic, target: Target, route: Route) -> None:
        mover = Mover(route.connection, job, target, route.table, self._watch(job))
        if not route.was_used:
            mover.check()
            route.was_used = True
        if job.local.is_cpu and job.nbytes <= BOUNCE_BYTES:
            mover.through_scratch()
            return
        if not job.local.is_cpu:
            verbs_gpu.settle(job.local)
        with self.memories(nic).registered(job.local) as registration:
            try:
                mover.in_place(Local(job.local.address + registration.shift, registration.lkey))
            except BaseException:
                if route.connection.num_posted:
                    route.connection.close()  # before the memory is released
                raise
        if job.op == READ and not job.local.is_cpu:
            verbs_gpu.flush(job.local)

    def memories(self, nic: Nic) -> LocalMemories:
        """Return the memory that is registered with a NIC for transfers from this process."""
        with self._state:
            return self._memories.setdefault(nic.port.name, LocalMemories(nic))

    def _watch(self, job: Job) -> Callable[[], None]:
        """Return the function to call when nothing arrives; after a while it asks the owner whether the
        buffer still exists.
        """
        heard = [time.monotonic(), job.done_bytes]

        def silent() -> None:
            if self._closing:
                raise RDMAError("this process is leaving its mesh")
            now = time.monotonic()
            if job.done_bytes != heard[1]:
                heard[:] = now, job.done_bytes
            elif now - heard[0] > SILENCE_S:
                self._ask_alive(job)
                heard[0] = time.monotonic()

        return silent

    def _ask_alive(self, job: Job) -> None:
        timeout_s = job.remaining_s(SILENCE_S)
        try:
            self._ask(job, timeout_s, IsAlive(job.handle))
        except BufferGone:
            raise
        except (RDMAError, PathUnavailable):
            pass  # the NIC may still work while its process is busy

    # --- asking the owner

    def _ask(self, job: Job, timeout_s: float, question: Question[T | Refused], /) -> T:
        found = self.plane.ask(question, timeout_s)
        if isinstance(found, Refused):
            raise PathUnavailable(f"{job.handle.owner} says: {found.why}")
        return found

    def _target(self, job: Job, nic: Nic) -> Target:
        key = (job.handle.key, nic.port.name)
        target = self._targets.get(key)
        if target is None:
            target = self._registered(job, nic)
            with self._state:
                while len(self._targets) >= MAX_TARGETS:
                    self._targets.pop(next(iter(self._targets)))
                self._targets[key] = target
        return target

    def _registered(self, job: Job, nic: Nic) -> Target:
        try:
            question = Register(job.handle, nic.port.name, nic.port.link_layer)
            return self._ask(job, job.remaining_s(ASK_S), question)
        except PathUnavailable as error:
            if job.handle.gpu:
                self._avoid(job.handle.owner.process, job.handle.gpu, str(error))
            raise

    # --- errors

    def _explained(self, job: Job, nic: Nic, error: CompletionError) -> Exception:
        """Return the error to raise for a failed request, after asking the owner whether the buffer still
        exists.
        """
        handle = job.handle
        with self._state:
            self._targets.pop((handle.key, nic.port.name), None)
        try:
            timeout_s = ALIVE_S if job.deadline is None else job.deadline - time.monotonic()
            self._ask(job, max(1.0, min(ALIVE_S, timeout_s)), IsAlive(handle))
        except BufferGone as gone:
            return gone
        except (RDMAError, PathUnavailable) as also:
            return self._failed(job, nic, f"{error}; {also}")
        if error.status != RETRY_EXCEEDED:
            return self._failed(job, nic, str(error))
        if job.done_bytes:
            return self._failed(job, nic, blocked_text())
        text = f"{blocked_text()} ({nic.port.name} to {handle.owner})"
        self._avoid(handle.owner.process, "", text)
        return PathUnavailable(text)

    def _failed(self, job: Job, nic: Nic, why: str) -> PathFailed:
        way = f"{nic.port.name} to {job.handle.owner}"
        return PathFailed(
            f"verbs: {job.op} of {job.handle} failed after {job.done_bytes:,} of {job.nbytes:,} bytes "
            f"({way}): {why}"
        )

    def _avoid(self, process: int, gpu: str, reason: str) -> None:
        """Avoid this path for a while, because other paths are faster than waiting for a time-out again."""
        with self._state:
            while len(self._avoided) >= MAX_AVOIDED:
                self._avoided.pop(next(iter(self._avoided)))
            self._avoided[process, gpu] = (time.monotonic() + AVOID_S, reason)

    # --- the owner's side, and closing

    def answer(self, question: Question[object], region: Region) -> Target | Connected | Done | Refused:
        with self._busy():
            return self.owner_side.answer(question, region)

    def forget(self, region: Region) -> None:
        self.owner_side.forget(region)

    def close(self) -> None:
        with self._state:
            self._closing = True
            self._state.wait_for(lambda: not self._num_busy, CLOSE_S)
            busy = self._num_busy
        self.routes.close_idle()
        self.owner_side.disconnect_all()
        if not busy:  # otherwise another thread still uses it: the end of the process closes it
            self.nics.close()
