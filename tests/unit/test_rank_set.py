"""Sets of ranks as people type them: what is read is what was meant, or it is refused. (The grammar:
test_shape.py.)
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._shape import Extent, RankSetError, Shape, format_ranks, parse_ranks

GRID = Extent(["hosts", "gpus"], [2, 8])
MESH = " This mesh has ranks 0-15 (hosts=2, gpus=8). Examples: all; 0-3,7; ::2; hosts=0,gpus=0"


@pytest.mark.parametrize("text", ["1 2", "0 1", "hosts=0 gpus=1", "1\n2", "- 1 5"])
def test_a_space_never_joins_two_numbers(text: str) -> None:
    with pytest.raises(RankSetError, match="can't read ranks"):
        parse_ranks(text, GRID)


@pytest.mark.parametrize("text", [" 0 - 3 , 7 ", "0-3,\n7", "ranks( 0-3 ,7 )", "0\t-3,7"])
def test_spaces_around_signs_mean_nothing(text: str) -> None:
    assert parse_ranks(text, GRID) == (0, 1, 2, 3, 7)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "nothing is given."),
        ("  ", "nothing is given."),
        ("ranks()", "nothing is given."),
        ("16", "rank 16 is out of range, 0 to 15 would do."),
        ("-17", "rank -17 is out of range, 0 to 15 would do."),
        ("0-16", "rank 16 is out of range, 0 to 15 would do."),
        ("5-2", "'5-2' counts down; write 2-5."),
        ("0,", "'' is neither a number, a range A-B nor a slice A:B."),
        ("hosts=", "'' is neither a number, a range A-B nor a slice A:B."),
        ("hosts=2", "hosts 2 is out of range, 0 to 1 would do."),
        ("gpus=8:", "'8:' picks nothing of 8."),
        ("::0", "'::0' has a step of 0."),
        ("gpu=1", "there is no dimension 'gpu'."),
        ("gpus=1,gpus=2", "dimension 'gpus' is given twice."),
        ("hosts=0,3", "expected DIM=PICKS at '3'."),
        ("gpus=(1,2", "expected DIM=PICKS at 'gpus=(1,2'."),
    ],
)
def test_each_error_says_all(text: str, wrong: str) -> None:
    with pytest.raises(RankSetError) as caught:
        parse_ranks(text, GRID)
    assert str(caught.value) == f"can't read ranks {text!r}: {wrong}{MESH}"


numbers = st.integers(-10, 10)


@given(st.tuples(st.none() | numbers, st.none() | numbers, st.none() | numbers.filter(bool)))
def test_slices_are_pythons(parts: tuple[int | None, int | None, int | None]) -> None:
    text = ":".join("" if p is None else str(p) for p in parts)
    expected = tuple(sorted(range(16)[slice(*parts)]))
    if expected:
        assert parse_ranks(text, GRID) == expected
    else:
        with pytest.raises(RankSetError, match="picks nothing"):
            parse_ranks(text, GRID)


@given(st.sets(st.integers(0, 1), min_size=1), st.sets(st.integers(0, 7), min_size=1))
def test_coordinates_are_a_product(hosts: set[int], gpus: set[int]) -> None:
    text = f"gpus=({format_ranks(gpus)}),hosts=({format_ranks(hosts)})"
    assert parse_ranks(text, GRID) == tuple(h * 8 + g for h in sorted(hosts) for g in sorted(gpus))


def test_in_a_slice_ranks_are_the_slices_own() -> None:
    part = Shape.full(GRID).slice(hosts=1)
    assert parse_ranks("all", part) == tuple(range(8))
    with pytest.raises(RankSetError, match="This mesh has ranks 0-7"):
        parse_ranks("8", part)


def test_format_is_the_shortest() -> None:
    assert format_ranks([]) == ""
    assert format_ranks([7, 3, 2, 1, 0, 3]) == "0-3,7"
    assert format_ranks(r for r in (5, 6)) == "5-6"
