"""Reads CPU, memory and GPUs of this machine and its ranks in a thread of its own: a proportional set size
takes the kernel some 2 ms per rank, and a driver may be slow.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from monarch_nb._host.agent.gpus import GpuReader
from monarch_nb._host.loop import Loop
from monarch_nb._protocol.resources import MonitoredHost

if TYPE_CHECKING:
    import psutil


MEMORY_SHARE = 0.02
"""At most this share of the time goes to reading the memory of a rank: the kernel walks all its pages. One
that is asked for more often than that is told as it was last.
"""


class ProcessSample(NamedTuple):
    """The readings of one process; None: not read this time."""

    cpu_percent: float | None = None
    memory_bytes: int | None = None


NOTHING_READ = ProcessSample()


class Sample(NamedTuple):
    """The readings of one round: processes by pid, and the machine without its history."""

    processes: dict[int, ProcessSample]
    host: MonitoredHost


class Sampler:
    """The thread that takes readings on demand. `ask` is for the loop's thread, in which answers are
    delivered; all else belongs to the sampling thread.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._asked: queue.SimpleQueue[tuple[Sequence[int], Sequence[int], Callable[[Sample], None]]] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._processes: dict[int, psutil.Process] = {}
        self._gpus: GpuReader | None = None
        self._memory: dict[int, tuple[int, float]] = {}
        """The memory of processes in bytes, and when it may be read again."""

    def ask(self, pids: Sequence[int], with_memory: Sequence[int], done: Callable[[Sample], None]) -> None:
        """Sample processes and the machine; `with_memory`: the pids whose memory is read, too."""
        self._asked.put((pids, with_memory, done))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            pids, with_memory, done = self._asked.get()
            sample = Sample(self._read_processes(pids, set(with_memory)), self._read_host())
            self._loop.call_soon_threadsafe(_bound(done, sample))

    def _read_processes(self, pids: Sequence[int], with_memory: set[int]) -> dict[int, ProcessSample]:
        import psutil

        self._processes = {pid: p for pid, p in self._processes.items() if pid in set(pids)}
        self._memory = {pid: read for pid, read in self._memory.items() if pid in self._processes}
        found: dict[int, ProcessSample] = {}
        for pid in pids:
            with suppress(psutil.Error, OSError):
                found[pid] = self._read_process(pid, pid in with_memory)
        return found

    def _read_process(self, pid: int, with_memory: bool) -> ProcessSample:
        import psutil

        process = self._processes.get(pid)
        cpu: float | None = None
        if process is None:
            process = self._processes[pid] = psutil.Process(pid)
            process.cpu_percent()  # the first reading only sets the baseline
        else:
            cpu = process.cpu_percent()
        return ProcessSample(cpu, self._read_memory(process) if with_memory else None)

    def _read_memory(self, process: psutil.Process) -> int:
        now = time.monotonic()
        found, again = self._memory.get(process.pid, (0, 0.0))
        if now >= again:
            found = process.memory_full_info().pss
            self._memory[process.pid] = found, now + (time.monotonic() - now) / MEMORY_SHARE
        return found

    def _read_host(self) -> MonitoredHost:
        import psutil

        cpu: float | None = psutil.cpu_percent()
        if self._gpus is None:
            self._gpus = GpuReader()
            cpu = None  # the first reading only sets the baseline
        memory = psutil.virtual_memory()
        return MonitoredHost(cpu, memory.total - memory.available, memory.total, tuple(self._gpus.read()))


def _bound(done: Callable[[Sample], None], sample: Sample) -> Callable[[], None]:
    return lambda: done(sample)
