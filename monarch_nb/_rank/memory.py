"""Measures the effect of a cell on this rank's memory: resident and proportional size, Python's allocations
by line, CUDA's by their history.
"""

from __future__ import annotations

import os
import pickle
import re
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

from monarch_nb._frames.cells import cell_number
from monarch_nb._frames.owner import hidden_patterns
from monarch_nb._protocol.profiles import MemoryReport
from monarch_nb._wire.loaded import loaded

MAX_LINES = 50
MIN_LINE_BYTES = 1000
MAX_CUDA_ENTRIES = 100_000
_RESET_PEAK = "5"


class MemoryRecording:
    """The measurement of this process' memory before and after a cell. `report` is there once it has ended.

    Python's own allocations are traced while the cell runs, which makes it slower; tensors aren't among them:
    theirs are in the resident size, or CUDA's.
    """

    def __init__(self) -> None:
        self.report: MemoryReport | None = None
        self._cuda = _cuda()
        if self._cuda is not None:
            self._cuda.reset_peak_memory_stats()
            self._cuda_before: int = self._cuda.memory_allocated()
            self._cuda.memory._record_memory_history(max_entries=MAX_CUDA_ENTRIES)
        self._was_tracing = tracemalloc.is_tracing()
        if not self._was_tracing:
            tracemalloc.start()
        self._first = tracemalloc.take_snapshot() if self._was_tracing else None
        tracemalloc.reset_peak()
        self._python_before = tracemalloc.get_traced_memory()[0]
        self._resident_before, self._proportional_before = sizes()
        self._knows_peak = _reset_peak()

    def end_recording(self) -> None:
        """Take the readings after the cell."""
        resident, proportional = sizes()
        now, peak = tracemalloc.get_traced_memory()
        lines = self._lines()
        if not self._was_tracing:
            tracemalloc.stop()
        cuda_bytes, cuda_peak_bytes, cuda_snapshot = self._cuda_report()
        self.report = MemoryReport(
            resident_bytes=resident - self._resident_before,
            proportional_bytes=proportional - self._proportional_before,
            peak_bytes=max(0, _status("VmHWM") - self._resident_before) if self._knows_peak else None,
            python_bytes=now - self._python_before,
            python_peak_bytes=peak - self._python_before,
            lines=tuple(lines),
            cuda_bytes=cuda_bytes,
            cuda_peak_bytes=cuda_peak_bytes,
            cuda_snapshot=cuda_snapshot,
        )

    def _lines(self) -> list[tuple[str, int, int]]:
        """Return place, bytes and number of the cell's allocations that still exist, largest first."""
        filters = [
            tracemalloc.Filter(False, pattern) for pattern in (*hidden_patterns(), tracemalloc.__file__)
        ]
        last = tracemalloc.take_snapshot().filter_traces(filters)
        first = self._first.filter_traces(filters) if self._first is not None else None
        found = last.statistics("lineno") if first is None else last.compare_to(first, "lineno")
        rows = [(_place(s.traceback[0]), *_held(s)) for s in found]
        return [row for row in rows if row[1] >= MIN_LINE_BYTES][:MAX_LINES]

    def _cuda_report(self) -> tuple[int | None, int | None, bytes | None]:
        """Return the growth of allocated memory, the peak above that, and a snapshot."""
        cuda = self._cuda
        if cuda is None:
            return None, None, None
        # A file for pytorch.org/memory_viz; nobody here reads it.
        snapshot = pickle.dumps(cuda.memory._snapshot(), 4)
        cuda.memory._record_memory_history(enabled=None)
        grown = cuda.memory_allocated() - self._cuda_before
        return grown, cuda.max_memory_allocated() - self._cuda_before, snapshot


def sizes() -> tuple[int, int]:
    """Return the resident and the proportional set size of this process in bytes."""
    text = Path("/proc/self/smaps_rollup").read_text()
    found = dict(re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.MULTILINE))
    return int(found["Rss"]) << 10, int(found["Pss"]) << 10


def _status(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1]) << 10 if match else 0


def _reset_peak() -> bool:
    """Reset the kernel's maximum of the resident size; False if it refuses."""
    with suppress(OSError):
        fd = os.open("/proc/self/clear_refs", os.O_WRONLY)
        try:
            os.write(fd, _RESET_PEAK.encode())
        finally:
            os.close(fd)
        return True
    return False


def _cuda() -> Any:
    """Return torch.cuda if torch is imported and there is a GPU."""
    torch = loaded("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() else None


def _held(found: tracemalloc.Statistic | tracemalloc.StatisticDiff) -> tuple[int, int]:
    if isinstance(found, tracemalloc.StatisticDiff):
        return found.size_diff, found.count_diff
    return found.size, found.count


def _place(frame: tracemalloc.Frame) -> str:
    cell = cell_number(frame.filename)
    return f"In [{cell}] line {frame.lineno}" if cell is not None else f"{frame.filename}:{frame.lineno}"
