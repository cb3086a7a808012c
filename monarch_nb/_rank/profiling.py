"""Profiles a cell on this rank: torch.profiler around the cell, and its memory. The result is kept for the
client to fetch, until the next one.

Begun before the cell can be interrupted and ended after, on the main thread: an interrupted cell has its
profile, too.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from monarch_nb._protocol.profiles import ProfileOptions, ProfileReport
from monarch_nb._rank.memory import MemoryRecording
from monarch_nb._rank.operators import operators
from monarch_nb._rank.trace import ChromeTrace, packed
from monarch_nb.exceptions import MeshUsageError

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "99"


class CellRecording:
    """The profile recording of one cell, which starts when it is constructed.

    Args:
        n: the cell's number in the journal.
        options: what to record.

    Raises:
        MeshUsageError: if a trace is wanted and there's no torch.
    """

    def __init__(self, n: int, options: ProfileOptions, rank: int, host: str) -> None:
        self.n = n
        self._options = options
        self._rank = rank
        self._host = host
        self._is_over = False
        self._profiler = _start_profiler(options) if options.trace else None
        self._memory = MemoryRecording() if options.memory else None

    def end_recording(self) -> None:
        """End the profile when the cell has ended, or has its value. Further calls do nothing."""
        if self._is_over:
            return
        self._is_over = True
        if self._memory is not None:
            self._memory.end_recording()
        if self._profiler is not None:
            with _quiet():
                self._profiler.stop()

    def report(self) -> ProfileReport:
        """Return the recorded profile."""
        memory = None if self._memory is None else self._memory.report
        pid = os.getpid()
        if self._profiler is None:
            return ProfileReport(self._host, pid, memory=memory)
        trace = _exported(self._profiler)
        return ProfileReport(
            self._host,
            pid,
            trace=packed(trace, rank=self._rank, host=self._host, pid=pid, base_ns=self._options.base_ns),
            operators=operators(trace["traceEvents"]),
            memory=memory,
        )


def _exported(profiler: Any) -> ChromeTrace:
    with tempfile.TemporaryDirectory(prefix="monarch_nb-") as folder:
        file = Path(folder, "trace.json")
        with _quiet():
            profiler.export_chrome_trace(str(file))
        # names of operators may be any text
        trace: ChromeTrace = json.loads(file.read_bytes(), strict=False)
    return trace


def begin_recording(n: int, options: ProfileOptions | None, rank: int, host: str) -> CellRecording | None:
    """Begin the profile of a cell, if this rank records one.

    Raises:
        MeshUsageError: if a trace is wanted and there's no torch.
    """
    if options is None or rank not in options.ranks:
        return None
    return CellRecording(n, options, rank, host)


def _start_profiler(options: ProfileOptions) -> Any:
    profiler = _new_profiler(options)
    with _quiet():
        profiler.start()
    return profiler


def _new_profiler(options: ProfileOptions) -> Any:
    try:
        import torch
        from torch.profiler import ProfilerActivity, profile
    except ImportError as error:
        raise MeshUsageError(
            f"a profile needs torch, and this rank has none ({error}): leave it out of "
            f"--profile-ranks, or install torch in {sys.prefix}"
        ) from None
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    found: dict[str, object] = {}
    stacks = options.stacks
    for config in ({"profile_all_threads": True, "trace_only": True}, {"profile_all_threads": True}):
        # an older torch, which profiles only the main thread, or is slower to end
        with suppress(AttributeError, TypeError):
            found["experimental_config"] = torch._C._profiler._ExperimentalConfig(verbose=stacks, **config)
            break
    return profile(activities=activities, record_shapes=options.shapes, with_stack=stacks, **found)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler's library from writing log messages into the cell's output."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = _SILENT
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)
