"""Bars of many ranks as one; ranks whose lines are taken away."""

from __future__ import annotations

import random

import pytest

from monarch_nb._display import CellView, Fold
from monarch_nb._display.bars import merge_bars
from monarch_nb._display.fold import Row
from monarch_nb._display.lines import Lines


def _bar(n: int, what: str = "") -> str:
    return f"{what}{10 * n:3d}%|{'█' * n:10s}| {n}/10 [00:0{n}<00:08,  1.0{n}it/s, loss=0.{n}]"


def test_bars_that_say_the_same_are_one() -> None:
    rows = [Row((0,), "out", _bar(4)), Row((2, 3), "out", _bar(9)), Row((1,), "out", _bar(2))]
    assert merge_bars(rows) == [Row((0, 1, 2, 3), "out", _bar(2).replace("2/10", "2-9/10"))]


def test_of_bars_that_are_as_far_the_slowest_one_is_shown() -> None:
    rows = [
        Row((0,), "out", "100%|█| 2/2 [00:06<00:00, 3s/it]"),
        Row((1,), "out", "100%|█| 2/2 [01:05<00:00, 30s/it]"),
    ]
    assert merge_bars(rows) == [Row((0, 1), "out", "100%|█| 2/2 [01:05<00:00, 30s/it]")]


@pytest.mark.parametrize(
    "rows",
    [
        [Row((0,), "out", _bar(4)), Row((1,), "out", _bar(4, "other: "))],
        [Row((0,), "out", _bar(4)), Row((0,), "out", _bar(5))],
        [Row((0,), "out", _bar(4)), Row((1,), "out", "text"), Row((1,), "out", _bar(4))],
        [Row((0,), "out", "[1] a]"), Row((1,), "out", "50% done]")],
    ],
)
def test_others_are_left_alone(rows: list[Row]) -> None:
    assert merge_bars(rows) == rows


def test_bars_without_an_end() -> None:
    rows = [Row((0,), "out", "30it [00:02, 14.2it/s]"), Row((1,), "out", "1.2kit [00:02, 600it/s]")]
    assert merge_bars(rows) == [Row((0, 1), "out", "30-1.2kit [00:02, 14.2it/s]")]


@pytest.mark.parametrize("seed", range(30))
def test_a_rank_that_is_cleared_leaves_the_others_as_they_are(seed: int) -> None:
    chance = random.Random(seed)
    fold, lines = Fold([0, 1, 2]), Lines([0, 1, 2], prefix=True)
    output: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for _ in range(200):
        rank = chance.randrange(3)
        if chance.random() < 0.03:
            fold.clear(rank)
            lines.clear(rank)
            output[rank] = []
        else:
            text = str(chance.randrange(4))
            fold.feed(rank, "stdout", text + "\n")
            lines.feed(rank, "stdout", text + "\n")
            output[rank].append(text)
        if chance.random() < 0.1:
            fold.drain()
            lines.drain()
    for shown in (fold, lines):
        for rank, texts in output.items():
            assert [row.text for row in shown.rows() if rank in row.ranks] == texts
    assert fold.num_rows == len(fold.rows()) and lines.num_rows == sum(map(len, output.values()))


def test_places_of_displays_that_differ_and_agree_again() -> None:
    view = CellView([0, 1], world_size=2)
    view.display(0, {"text/markdown": "a"}, display_id="x")
    view.display(1, {"text/markdown": "b"}, display_id="x")
    assert [output.data["text/plain"] for output in view.outputs()] == ["rank 0:", "a", "rank 1:", "b"]
    view.display(1, {"text/markdown": "a"}, display_id="x", update=True)
    assert [output.data["text/plain"] for output in view.outputs()] == ["ranks 0-1:", "a"]
    assert view.text() == "[0-1] a"
