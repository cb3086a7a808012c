"""What programs see of lines that ranks print is what `Fold` makes of them, however they come."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb._display.fold import Fold
from monarch_nb._display.printed import Printed

TEXTS = st.sampled_from(
    ["a", "b", "\n", "a\nb\n", "1\n2\n3\n", "x\r", "10%\r20%\r", "\r\n", "", "\n\n", "é\n"]
)
ENDED = st.builds(lambda rank, n: (rank, "stdout", f"{rank} {n}\n"), st.integers(0, 3), st.integers(0, 9))
PIECES = st.one_of(
    st.tuples(st.integers(0, 3), st.sampled_from(["stdout", "stdout", "stdout", "stderr"]), TEXTS), ENDED
)


@given(st.lists(PIECES, max_size=40), st.integers(1, 4))
@settings(max_examples=500)
def test_one_write_is_what_a_fold_makes_of_it(pieces: list[tuple[int, str, str]], num_ranks: int) -> None:
    fold, printed = Fold(range(num_ranks), max_rows=None), Printed(num_ranks)
    for rank, stream, text in pieces:
        fold.feed(rank % num_ranks, stream, text)
        printed.feed(rank % num_ranks, stream, text)
    assert printed.drain() == fold.drain()


@given(st.lists(st.lists(PIECES, max_size=8), max_size=8), st.integers(0, 3))
@settings(max_examples=300)
def test_no_line_is_lost_or_told_twice(writes: list[list[tuple[int, str, str]]], num_kept: int) -> None:
    printed, fold = Printed(4), Fold(range(4), max_rows=None)
    found: list[str] = []
    for pieces in writes:
        for piece in pieces:
            printed.feed(*piece)
            fold.feed(*piece)
        found += printed.drain(num_kept).splitlines()
    for rank in range(4):
        read = [line.partition("] ")[2] for line in found if _names(line, rank)]
        assert sorted(read) == sorted(row.text for row in fold.rows() if rank in row.ranks)


def _names(line: str, rank: int) -> bool:
    for part in line[1 : line.index("]")].split(","):
        first, _, last = part.partition("-")
        if int(first) <= rank <= int(last or first):
            return True
    return False


def test_a_progress_bar_takes_no_memory() -> None:
    printed = Printed(1)
    for n in range(1000):
        printed.feed(0, "stdout", f"\r{n} of 1000")
    assert sum(len(piece) for tail in printed._tails.values() for piece in tail) < 100
    printed.feed(0, "stdout", "\n")
    assert printed.drain() == "999 of 1000\n"
