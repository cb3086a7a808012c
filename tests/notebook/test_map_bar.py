"""A map that takes long says in the cell that waits for it how many items are done; stopped, it's over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import ANSI, FileLatch, RawKernel

HELD = """
def held(x):
    if x == {num}:
        {gate}
    return x
"""
LOST = "while True: time.sleep(0.01)"


@pytest.fixture(scope="module")
def kernel() -> Iterator[RawKernel]:
    opened = RawKernel()
    opened.run("%load_ext monarch_nb")
    opened.run("%mesh start counted --procs 2")
    yield opened
    opened.run("%mesh stop counted")
    opened.close()


def define(kernel: RawKernel, num: int, gate: str) -> None:
    indented = gate.replace("\n", "\n        ")
    assert kernel.show(HELD.format(num=num, gate=indented)) == ""


def test_it_counts_what_is_done(kernel: RawKernel, tmp_path: Path) -> None:
    gate = FileLatch(tmp_path / "gate")
    define(kernel, 7, gate.source)
    cell = kernel.start("found = mesh.map(held, range(8)).get(); found == [*range(8)]")
    kernel.wait_for(cell, "7 of 8 done")
    assert re.search(r"7 of 8 done, [\d.]+ s, [\d.]+ (s|min) left", kernel.text(cell)), kernel.text(cell)
    gate.open()
    kernel.finish(cell)
    text = kernel.text(cell)
    assert re.search(r"8 of 8 done, .*\nTrue", text) and "7 of 8" not in text, text


def test_of_a_generator_it_says_how_many(kernel: RawKernel, tmp_path: Path) -> None:
    gate = FileLatch(tmp_path / "gate")
    define(kernel, 3, gate.source)
    cell = kernel.start("sum(mesh.map(held, (x for x in range(4)), ordered=False))")
    kernel.wait_for(cell, "3 done, ")
    gate.open()
    kernel.finish(cell)
    assert re.search(r"4 done, .*\n6", kernel.text(cell)), kernel.text(cell)


def test_the_stop_button_ends_it(kernel: RawKernel) -> None:
    define(kernel, 1, f"import time\n{LOST}")
    cell = kernel.start("mesh.map(held, range(4)).get()")
    kernel.wait_for(cell, "3 of 4 done")
    kernel.manager.interrupt_kernel()
    kernel.finish(cell)
    assert "KeyboardInterrupt" in ANSI.sub("", kernel.text(cell)), kernel.text(cell)
    assert kernel.show("%%mesh\nrank") == "[0] 0\n[1] 1"
    assert kernel.show("mesh.map(held, [5, 6]).get()") == "[5, 6]"
