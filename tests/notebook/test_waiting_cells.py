"""A cell that waits for another says so as long as it waits; one that is attached to shows how long it has
run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import FileLatch, RawKernel


@pytest.fixture
def kernel() -> Iterator[RawKernel]:
    opened = RawKernel()
    opened.run("%load_ext monarch_nb\n%mesh start waiting --procs 2")
    yield opened
    opened.run("%mesh stop -f")
    opened.close()


def test_waiting_is_said_as_long_as_it_lasts(kernel: RawKernel, tmp_path: Path) -> None:
    first, second = FileLatch(tmp_path / "first"), FileLatch(tmp_path / "second")
    kernel.run(f"%%mesh --async\n{first.source}")
    cell = kernel.run(f"%%mesh --async\nprint('begun')\n{second.source}")
    kernel.wait_for(cell, "waits for cell #2")
    first.open()
    kernel.wait_for(cell, "[0-1] begun")
    assert "waits for cell" not in kernel.text(cell)

    while elapsed_s(kernel.text(cell)) < 4:
        kernel.take(kernel.client.get_iopub_msg(timeout=60))
    seen_s = elapsed_s(kernel.text(cell))
    other = RawKernel()
    other.run("%load_ext monarch_nb\nimport monarch_nb\nmonarch_nb.attach('waiting')")
    result = other.start("%mesh result 3 --name waiting")
    other.wait_for(result, "0 of 2 ranks done")
    assert elapsed_s(other.text(result)) >= seen_s
    second.open()
    other.finish(result)
    other.close()


def elapsed_s(text: str) -> float:
    """Return how long a display says that its cell has run."""
    found = re.search(r"0 of 2 ranks done, ([\d.]+) s", text)
    return float(found[1]) if found else 0.0
