"""Nasty cells, one after the other, on one mesh, from a real notebook: each ends, shows what is the
user's, and the next one runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import FULL, Kernel, insides_in, nothing_left, tried
from nasty_cells import NASTY, Nasty

MAX_SHOWN_BYTES = 8 << 20
"""What a cell may leave in the notebook."""
MEND = "import sys; sys.stdout, sys.stderr = sys.kept_streams"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]


class Bench:
    """A notebook and its mesh, made anew after a cell that has failed: it takes no other with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kernel: Kernel | None = None

    @property
    def kernel(self) -> Kernel:
        if self._kernel is None:
            self._kernel = Kernel(self._folder)
            ready = self._kernel.run("%mesh start nasty --procs 2").text
            assert "is ready" in ready, ready
            self.keep_streams()
        return self._kernel

    def keep_streams(self) -> None:
        self.kernel.run("%%mesh\nimport sys\nsys.kept_streams = sys.stdout, sys.stderr")

    def answers(self) -> str:
        """Have all ranks answer once, by a value: their output may lead anywhere by now."""
        text = self.kernel.run("%%mesh --output answers\n6 * 7").text
        return text + self.kernel.run("print([*answers.values()]); del answers").text

    def close(self) -> None:
        if self._kernel is not None:
            stopped = self._kernel.run("%mesh stop").text
            assert "has ended" in stopped, stopped
            closing, self._kernel = self._kernel, None
            closing.close()

    def throw_away(self) -> None:
        if self._kernel is not None:
            self._kernel.kill()
            self._kernel = None


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with nothing_left():
        made = Bench(tmp_path_factory.mktemp("nasty"))  # cells may dump core
        try:
            yield made
            made.close()
        finally:
            made.throw_away()


@pytest.mark.parametrize("cell", [c for c in NASTY if FULL or not c.long], ids=lambda c: c.name)
def test_a_nasty_cell(cell: Nasty, bench: Bench) -> None:
    try:
        _try(cell, bench)
    except BaseException:
        bench.throw_away()
        raise


CLOSES_IN_ACTOR = """
from monarch_nb.actor import Actor, endpoint

class Closes(Actor):
    @endpoint
    def close(self):
        import os
        os.closerange(3, 10_000)

closing = mesh.part('0').spawn('closing', Closes)
closing.close.call().get()
"""


def test_an_actor_that_closes_all_descriptors(bench: Bench) -> None:
    shown = bench.kernel.run(CLOSES_IN_ACTOR)
    try:
        assert shown.is_error
        assert all(w in shown.text for w in ("rank 0: lost", "os.closerange()", "%mesh heal")), shown.text
        assert not insides_in(shown.text), shown.text
        healed = bench.kernel.run("%mesh heal").text
        assert "rank 0 started anew" in healed and "actor 'closing' made again" in healed, healed
        bench.kernel.run("closing.stop().get()")
        bench.keep_streams()
        assert bench.answers().strip().endswith("[42, 42]")
    except BaseException:
        bench.throw_away()
        raise


def _try(cell: Nasty, bench: Bench) -> None:
    kernel = bench.kernel
    shown = kernel.run(f"%%mesh {cell.flags}\n{cell.source}")
    if cell.end == "dies" or re.search(r"%mesh (heal|restart)\b", shown.text):
        healed = kernel.run("%mesh heal").text
        assert "started anew" in healed or (cell.end != "dies" and "nothing was lost" in healed), healed
        bench.keep_streams()
    mended = kernel.run(f"%%mesh\n{MEND}\n{cell.mends}").text
    assert not insides_in(mended), mended
    answers = bench.answers()
    assert answers.strip().endswith("[42, 42]"), answers
    text = shown.text[-5000:]
    assert cell.own_frames or not insides_in(shown.text), text
    assert shown.num_bytes < MAX_SHOWN_BYTES, f"{shown.num_bytes:,} bytes in the notebook"
    assert all(word in shown.text for word in cell.shows), text
    assert cell.end == "any" or shown.is_error == (cell.end != "ok"), text
    tried("nasty cells")


def test_the_table_is_whole() -> None:
    names = [c.name for c in NASTY]
    assert len(set(names)) == len(names) >= 110
    assert Path(__file__).with_name("nasty_cells.py").stat().st_size < 60_000
