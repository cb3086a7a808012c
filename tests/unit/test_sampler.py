"""Readings of this machine's processes: how often what takes long is read."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from monarch_nb._host.agent import sampler as samplers
from monarch_nb._host.agent.sampler import MEMORY_SHARE, Sampler


def test_memory_is_read_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at a mesh walked all pages of all ranks: a loop that asked kept the host process busy."""
    now, reads, read = 0.0, [], psutil.Process.memory_full_info

    def takes_a_second(process: psutil.Process) -> Any:
        nonlocal now
        now += 1.0
        reads.append(now)
        return read(process)

    monkeypatch.setattr(psutil.Process, "memory_full_info", takes_a_second)
    monkeypatch.setattr(samplers, "time", SimpleNamespace(monotonic=lambda: now))
    sampler, pid = Sampler(None), os.getpid()  # type: ignore[arg-type]  # nothing is asked of its thread

    def memory() -> int | None:
        return sampler._read_processes([pid], {pid})[pid].memory_bytes

    first = memory()
    assert first is not None and first > 1 << 20
    now = 1.0 / MEMORY_SHARE - 1.0
    assert (memory(), len(reads)) == (first, 1)
    now = 1.0 / MEMORY_SHARE
    assert memory() is not None and len(reads) == 2
    sampler._read_processes([], set())  # it has ended: a process that gets its number is another one
    assert memory() is not None and len(reads) == 3
