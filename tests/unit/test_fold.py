"""Folding keeps each rank's lines, in order, whatever the interleaving, and folds what a reader would."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb._display.bundle import Bundle
from monarch_nb._display.displays import Made
from monarch_nb._display.fold import DISPLAY, FLOATING_ROWS, LOOKAHEAD_ROWS, NOTE, Fold, Row, last_state
from monarch_nb._folding import is_trouble, split

LINES = st.sampled_from(
    ["a", "b", "c", "epoch 1", "epoch 2", "", "10%\r20%\r", "x\ry", "\x1b[31mred\x1b[0m", "日本語 🙂"]
)
EVENTS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["stdout", "stderr"]), LINES), max_size=80)
SHOWN = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["stdout", "stderr", DISPLAY]), LINES), max_size=80
)


def made(text: str, display_id: str | None = None) -> Made:
    return Made(display_id, Bundle.of({"text/plain": text}))


def shown_by(row: Row, rank: int) -> tuple[str, str]:
    """Return what a rank has printed or displayed in a row."""
    if row.stream == DISPLAY:
        return DISPLAY, row.shown[row.ranks.index(rank)].bundle.text()
    return row.stream, row.text


def lines_of(fold: Fold, rank: int) -> list[tuple[str, str]]:
    return [shown_by(row, rank) for row in fold.rows() if rank in row.ranks]


@given(SHOWN, st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_each_rank_reads_back_exactly(events: list[tuple[int, str, str]], rng: random.Random) -> None:
    fold = Fold(range(4))
    expected: dict[int, list[tuple[str, str]]] = {rank: [] for rank in range(4)}
    for rank, stream, line in events:
        if stream == DISPLAY:
            if unfinished := rng.choice(["", " ", "half"]):
                fold.feed(rank, "stdout", unfinished)
                expected[rank] += [("stdout", unfinished)] * bool(unfinished.strip())
            display = made(line, rng.choice([None, "same", "f" * 31 + str(rank)]))
            fold.mark(rank, display)
            expected[rank].append((DISPLAY, display.bundle.text()))
            continue
        expected[rank].append((stream, last_state(line)))
        text, cut = line + rng.choice(["\n", "\r\n"]), rng.randrange(len(line) + 2)
        fold.feed(rank, stream, text[:cut])
        fold.feed(rank, stream, text[cut:])
    assert {rank: lines_of(fold, rank) for rank in range(4)} == expected
    assert sum(len(row.ranks) for row in fold.rows()) == sum(map(len, expected.values()))


@given(SHOWN, st.sets(st.integers(0, 80)))
@settings(max_examples=300)
def test_what_is_drained_keeps_each_rank_in_order(
    events: list[tuple[int, str, str]], drains: set[int]
) -> None:
    fold = Fold(range(4))
    expected: dict[int, list[tuple[str, str]]] = {rank: [] for rank in range(4)}
    drained: list[Row] = []
    for position, (rank, stream, line) in enumerate(events):
        if position in drains:
            drained += fold.drain_rows(num_holds=1)
        if stream == DISPLAY:
            fold.mark(rank, made(line))
            expected[rank].append((DISPLAY, made(line).bundle.text()))
        else:
            fold.feed(rank, stream, line + "\n")
            expected[rank].append((stream, last_state(line)))
    drained += fold.drain_rows()
    for rank in range(4):
        assert [shown_by(row, rank) for row in drained if rank in row.ranks] == expected[rank]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=30))
@settings(max_examples=100)
def test_displays_are_neither_hidden_nor_forgotten(events: list[tuple[int, int]]) -> None:
    """Between many lines, of which most are hidden and some are forgotten; each rank's stay in order."""
    fold = Fold(range(3), max_rows=2)
    expected: dict[int, list[tuple[str, str]]] = {rank: [] for rank in range(3)}
    lines = cycle("abcde")
    for number, (rank, num_lines) in enumerate(events):
        for line in (next(lines) for _ in range(num_lines)):
            fold.feed(rank, "stdout", line + "\n")
            expected[rank].append(("stdout", line))
        fold.mark(rank, made(str(number // 2)))
        expected[rank].append((DISPLAY, str(number // 2)))
    num_shown = sum(row.stream not in (DISPLAY, NOTE) for row in fold.rows())
    assert num_shown <= 2 and all(row.next is None or row.label < row.next.label for row in fold._walk())
    for rank in range(3):
        held = iter(expected[rank])
        found = lines_of(fold, rank)
        assert all(each in held for each in found), "in their order"
        assert [each for each in found if each[0] == DISPLAY] == [
            each for each in expected[rank] if each[0] == DISPLAY
        ]


def test_equal_displays_fold_as_lines_do() -> None:
    fold = Fold([0, 1, 2])
    for rank in range(3):
        fold.feed(rank, "stdout", "train\n")
        fold.mark(rank, made("loss"))
        fold.mark(rank, made(f"plot {rank // 2}"))
        fold.feed(rank, "stdout", "test\n")
        fold.mark(rank, made("loss"))
    assert [(row.ranks, shown_by(row, row.ranks[0])[1]) for row in fold.rows()] == [
        ((0, 1, 2), "train"),
        ((0, 1, 2), "loss"),
        ((0, 1), "plot 0"),
        ((2,), "plot 1"),
        ((0, 1, 2), "test"),
        ((0, 1, 2), "loss"),
    ]


def test_displays_of_one_name_fold_though_ranks_show_different_things() -> None:
    fold = Fold([0, 1])
    for rank in range(2):
        fold.mark(rank, made(f"loss {rank}", "status"))
        fold.mark(rank, made(f"plot {rank}", f"{rank:032x}"))  # an id that nobody has given
    assert [row.ranks for row in fold.rows()] == [(0, 1), (0,), (1,)]


@given(EVENTS, st.sets(st.integers(0, 80)), st.integers(0, 10))
@settings(max_examples=300)
def test_drained_text_keeps_each_rank_in_order(
    events: list[tuple[int, str, str]], drains: set[int], num_kept: int
) -> None:
    fold = Fold([0, 1, 2, 3])
    text, expected = "", {rank: [] for rank in range(4)}
    for position, (rank, stream, line) in enumerate(events):
        if position in drains:
            text += fold.drain()
            fold.forget_drained(num_kept)
        fold.feed(rank, stream, line + "\n")
        expected[rank].append(last_state(line))
    text += fold.drain()
    seen: dict[int, list[str]] = {rank: [] for rank in range(4)}
    for printed in text.split("\n")[:-1]:
        ranks, _, rest = printed.removeprefix("[").partition("] ")
        for part in ranks.split(","):
            first, _, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                seen[rank].append(rest)
    assert seen == expected
    assert fold.drain() == ""


@pytest.mark.parametrize("order", ["by rank", "by line"])
def test_equal_lines_fold_at_any_skew(order: str) -> None:
    fold = Fold(range(8))
    events = [(rank, f"step {step}\n") for rank in range(8) for step in range(LOOKAHEAD_ROWS * 9 // 10)]
    if order == "by line":
        events.sort(key=lambda event: int(event[1].split()[1]))
    for rank, text in events:
        fold.feed(rank, "stdout", text)
    assert {row.ranks for row in fold.rows()} == {tuple(range(8))}


def test_lines_that_differ_in_a_number_are_two() -> None:
    fold = Fold([0, 1])
    fold.feed(0, "stdout", "loss 0.51\n")
    fold.feed(1, "stdout", "loss 0.52\n")
    assert fold.rows() == [Row((0,), "stdout", "loss 0.51"), Row((1,), "stdout", "loss 0.52")]


def test_own_lines_stand_before_the_shared_line_that_follows() -> None:
    fold = Fold([0, 1, 2])
    for rank in range(3):
        fold.feed(rank, "stdout", f"hello {rank}\nsame\n")
    assert fold.drain() == "[0] hello 0\n[1] hello 1\n[2] hello 2\n[0-2] same\n"


def test_a_lone_line_stands_where_it_happened() -> None:
    fold = Fold([0, 1])
    fold.feed(0, "stdout", "epoch 1\nepoch 2\n")
    fold.feed(1, "stderr", "warning\n")
    fold.feed(0, "stdout", "epoch 3\n")
    assert [row.text for row in fold.rows()] == ["epoch 1", "epoch 2", "warning", "epoch 3"]


def test_a_rank_silent_for_long_pairs_with_the_newest_lines() -> None:
    fold = Fold([0, 1], max_rows=None)
    fold.feed(0, "stdout", "".join(f"epoch {epoch}\n" for epoch in range(3 * LOOKAHEAD_ROWS)))
    fold.feed(0, "stdout", "evaluate\n")
    fold.feed(1, "stdout", "evaluate\n")
    assert fold.rows()[-1] == Row((0, 1), "stdout", "evaluate")


def test_many_own_lines_settle() -> None:
    fold = Fold([0, 1])
    fold.feed(0, "stdout", "start\nend\n")
    fold.feed(1, "stdout", "".join(f"own {i}\n" for i in range(2 * FLOATING_ROWS)) + "end\n")
    assert lines_of(fold, 1)[-1] == ("stdout", "end")
    assert len(lines_of(fold, 1)) == 2 * FLOATING_ROWS + 1


def test_insertions_at_one_place_make_room() -> None:
    """Labels between two rows run out after some 60 halvings; then all rows are labelled anew."""
    fold = Fold(range(100))
    fold.feed(0, "stdout", "same\n")
    for rank in range(1, 100):
        fold.feed(rank, "stdout", f"own {rank}\nsame\n")
    assert [row.text for row in fold.rows()] == [*(f"own {rank}" for rank in range(1, 100)), "same"]


def test_progress_bar_counts_in_its_last_state() -> None:
    fold = Fold([0, 1])
    for percent in range(0, 101, 10):
        for rank in range(2):
            fold.feed(rank, "stderr", f"\r{percent}%|{'#' * (percent // 10)}|")
    assert fold.rows() == []
    assert fold.partial_rows() == [Row((0, 1), "stderr", "100%|##########|")]
    fold.feed(0, "stderr", "\n")
    assert fold.partial_rows() == [Row((1,), "stderr", "100%|##########|")]
    fold.finish()
    assert fold.rows() == [Row((0, 1), "stderr", "100%|##########|")]


def test_a_bar_that_is_wiped_leaves_nothing() -> None:
    fold = Fold([0])
    fold.feed(0, "stderr", "\r50%")
    fold.feed(0, "stderr", "\r   \r")
    fold.finish()
    assert (fold.rows(), fold.partial_rows()) == ([], [])


def test_crlf_across_chunks_is_one_line_end() -> None:
    fold = Fold([0])
    fold.feed(0, "stdout", "one\r")
    assert fold.partial_rows() == [Row((0,), "stdout", "one")]
    fold.feed(0, "stdout", "\ntwo\r\n")
    assert [row.text for row in fold.rows()] == ["one", "two"]


def test_streams_stay_apart() -> None:
    fold = Fold([0, 1])
    fold.feed(0, "stdout", "x\n")
    fold.feed(1, "stderr", "x\n")
    assert [row.ranks for row in fold.rows()] == [(0,), (1,)]


def test_prefix() -> None:
    alone, one_of_many, gap = Fold([0]), Fold([3], prefix=True), Fold([0, 1, 2, 7])
    for fold, ranks in ((alone, [0]), (one_of_many, [3]), (gap, [0, 1, 2, 7])):
        for rank in ranks:
            fold.feed(rank, "stdout", "x\n")
    assert [fold.drain() for fold in (alone, one_of_many, gap)] == ["x\n", "[3] x\n", "[0-2,7] x\n"]


def test_drain_says_late_joiners_again() -> None:
    fold = Fold([0, 1, 2])
    fold.feed(0, "stdout", "a\n")
    fold.feed(2, "stdout", "a\n")
    assert fold.drain() == "[0,2] a\n"
    fold.feed(1, "stdout", "a\nb")
    assert fold.drain() == "[1] a\n"
    fold.finish()
    assert fold.drain() == "[1] b\n"
    assert fold.rows()[0].ranks == (0, 1, 2)


def test_forgotten_lines_are_said_again_and_cost_nothing() -> None:
    fold = Fold([0, 1], max_rows=None)
    for n in range(1000):
        fold.feed(0, "stdout", f"{n}\nhalf a ")
        fold.drain()
        fold.forget_drained(100)
        assert len(fold.rows()) <= 100
        fold.feed(0, "stdout", "line\n")
    assert fold.num_rows == 2000
    fold.feed(1, "stdout", "0\n")
    assert fold.drain().endswith("[0] half a line\n[1] 0\n")


def test_what_has_not_been_drained_is_not_forgotten() -> None:
    fold = Fold([0, 1])
    fold.feed(0, "stdout", "a\n")
    fold.forget_drained(0)
    assert fold.drain() == "[0] a\n"


def test_cap_keeps_both_ends() -> None:
    fold = Fold([0, 1], max_rows=10, more_hint="%mesh logs")
    fold.feed(0, "stdout", "".join(f"{i}\n" for i in range(100)))
    rows = fold.rows()
    assert [row.text for row in rows] == [
        *map(str, range(5)),
        "... 90 lines not shown; all of them: %mesh logs",
        *map(str, range(95, 100)),
    ]
    assert rows[5].stream == NOTE


def test_memory_is_bounded_and_ends_still_fold() -> None:
    fold = Fold([0, 1], max_rows=20, more_hint="%mesh logs")
    for start in range(0, 5000, 100):
        for rank in range(2):
            fold.feed(rank, "stdout", "".join(f"{i}\n" for i in range(start, start + 100)))
    rows = fold.rows()
    assert [row.text for row in rows if row.stream != NOTE] == [
        *map(str, range(10)),
        *map(str, range(4990, 5000)),
    ]
    assert {row.ranks for row in rows if row.stream != NOTE} == {(0, 1)}
    assert fold.num_rows == 5000
    assert sum(1 for _ in fold._walk()) <= 20 * 50
    assert fold.drain().startswith("... 4,")


@pytest.mark.parametrize(
    "line",
    [
        lambda rank, i: f"step {i} loss 0.5\n",
        lambda rank, i: f"rank {rank} step {i}\n",
        lambda rank, i: "tick\n\n",
    ],
    ids=["equal", "all differ", "repeated"],
)
@pytest.mark.parametrize("chunk", [1, 100, 10_000])
def test_speed(line: Callable[[int, int], str], chunk: int) -> None:
    """8 ranks with 10,000 lines each; generous for a busy machine, but a quadratic step would break it."""
    texts = [
        (rank, "".join(line(rank, i) for i in range(start, start + chunk)))
        for start in range(0, 10_000, chunk)
        for rank in range(8)
    ]
    fold = Fold(range(8))
    begin = time.process_time()
    for rank, text in texts:
        fold.feed(rank, "stdout", text)
    assert time.process_time() - begin < 2.0


def test_warnings_and_failures_differ_in_their_values_only() -> None:
    fold = Fold(range(4))
    for rank in range(4):
        fold.feed(rank, "stderr", f"t.py:3: UserWarning: rank {rank} is slow\n  warnings.warn(text)\n")
        fold.feed(rank, "stdout", f"ERROR of rank {rank}\n")
        fold.feed(rank, "stderr", f"loss {rank}\n")
    assert [(r.ranks, r.text) for r in fold.rows()] == [
        ((0, 1, 2, 3), "t.py:3: UserWarning: rank {0-3} is slow"),
        ((0, 1, 2, 3), "  warnings.warn(text)"),
        *[((rank,), text) for rank in range(4) for text in (f"ERROR of rank {rank}", f"loss {rank}")],
    ]


def test_what_a_terminal_is_sent_of_a_warning_has_the_values_of_these_ranks_only() -> None:
    fold = Fold(range(3))
    fold.feed(0, "stderr", "ERROR port 4000\n")
    fold.feed(1, "stderr", "ERROR port 4001\n")
    assert fold.drain() == "[0-1] ERROR port {4000, 4001}\n"
    fold.feed(2, "stderr", "ERROR port 4002\n")
    assert fold.drain() == "[2] ERROR port 4002\n"
    assert [r.text for r in fold.rows()] == ["ERROR port {4000-4002}"]


TROUBLE = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["ERROR {n}", "E: Warning: {n} of {n}", "plain {n}", "WARN no number"]),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(TROUBLE)
def test_each_rank_has_its_warnings_in_their_order(lines: list[tuple[int, str, int]]) -> None:
    fold = Fold(range(4))
    for rank, form, n in lines:
        fold.feed(rank, "stderr", form.format(n=n) + "\n")
    rows = fold.rows()
    for rank in range(4):
        own = [form.format(n=n) for r, form, n in lines if r == rank]
        shown = [row for row in rows if rank in row.ranks]
        assert [split(row.text)[0] if "{" not in row.text else None for row in shown] == [
            None if "{" in row.text else split(text)[0] for row, text in zip(shown, own, strict=True)
        ]
        for row, text in zip(shown, own, strict=True):
            if len({f for f in own if f == text}) and "{" not in row.text:
                assert row.text == text
            else:
                assert is_trouble(text) and len(row.ranks) > 1
                for value in split(text)[1]:
                    assert listed(row.text, int(value))


def listed(text: str, value: int) -> bool:
    """Say whether a value is among those that a folded text lists."""
    for part in re.findall(r"\{([^}]*)\}|(\d+)", text):
        for item in re.sub(r"\[[^]]*\] ", "", part[0] or part[1]).replace(";", ",").split(","):
            low, _, high = item.strip().partition("-")
            if int(low) <= value <= int(high or low):
                return True
    return False


def test_many_lines_of_warnings_are_bounded_and_fold() -> None:
    fold = Fold(range(8), max_rows=1000)
    for step in range(0, 5_000, 1000):
        for rank in range(8):
            fold.feed(
                rank,
                "stderr",
                "".join(
                    f"step {i}: UserWarning: rank {rank} at 0x{i:x}{rank}\n" for i in range(step, step + 1000)
                ),
            )
    rows = fold.rows()
    assert fold.num_rows == 5_000  # of 40,000 lines
    assert len(rows) == 1001
    assert rows[0].ranks == tuple(range(8))
    assert "rank {0-7}" in rows[0].text


def test_what_actors_log_folds_though_each_has_its_name() -> None:
    fold = Fold(range(4))
    for rank in range(4):
        fold.feed(rank, "stderr", f"[actor=<root>.<m.Trainer trainer{{'gpus': {rank}/4}}>] epoch 1\n")
        fold.feed(
            rank, "stderr", f"[actor=<root>.<m.Trainer trainer{{'gpus': {rank}/4}}>] loss {rank // 2}\n"
        )
    texts = [(row.ranks, row.text.partition("] ")[2]) for row in fold.rows()]
    assert texts[0] == ((0, 1, 2, 3), "epoch 1")
    assert sorted(texts[1:]) == [((0, 1), "loss 0"), ((2, 3), "loss 1")]
