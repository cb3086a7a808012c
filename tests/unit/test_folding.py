"""Messages that differ only in numbers are one, and nothing of them is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._folding import fold, is_trouble, merge, split
from monarch_nb._protocol.exits import RankExit
from monarch_nb.actor import MeshFailure
from monarch_nb.exceptions import ActorError, RankFailure


def folded(*texts: str) -> list[tuple[tuple[int, ...], str]]:
    return [(g.ranks, g.texts[0]) for g in fold(("E", (rank,), (text,)) for rank, text in enumerate(texts))]


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        ([f"rank {r} broken" for r in range(4)], "rank {0-3} broken"),
        (["port 4001", "port 4002"], "port {4001, 4002}"),
        ([f"port {4000 + 2 * r}" for r in range(3)], "port {4000, 4002, 4004}"),
        ([f"pid {77 + r}" for r in range(8)], "pid {77-84}"),
        (["at 0x7f01", "at 0x7f02"], "at {0x7f01, 0x7f02}"),
        (["got 5", "got 5", "got 7", "got 5"], "got {[0-1,3] 5; [2] 7}"),
        (["id 550e8400-e29b-41d4-a716-446655440000", "id 650e8400-e29b-41d4-a716-446655440001"],
         "id {550e8400-e29b-41d4-a716-446655440000, 650e8400-e29b-41d4-a716-446655440001}"),
        (["commit abc1234f", "commit f4321cba"], "commit {abc1234f, f4321cba}"),
        (["1.5 GiB free of 80", "512 MiB free of 80"], "{1.5 GiB, 512 MiB} free of 80"),
        (["12:00:01.5 lost", "12:00:02 lost"], "{12:00:01.5, 12:00:02} lost"),
        (["cuda:0 at 10.0.0.1:80", "cuda:1 at 10.0.0.2:80"], "cuda:{0-1} at {10.0.0.1, 10.0.0.2}:80"),
        (["loss 1e-5", "loss 2.5e+6"], "loss {1e-5, 2.5e+6}"),
    ],
)  # fmt: skip
def test_values_are_listed(texts: list[str], shown: str) -> None:
    assert folded(*texts) == [(tuple(range(len(texts))), shown)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no such file a", "no such file b"),
        ("got 5", "got nan"),
        ("got 5", "got -5"),
        ("got 5", "got 5 6"),
        ('  File "a.py", line 3, in f\n    x', '  File "a.py", line 4, in f\n    x'),
        ("Cell In[3], line 1\n----> 1 x", "Cell In[4], line 1\n----> 1 x"),
        ('  |   File "a.py", line 3, in f', '  |   File "a.py", line 30, in f'),
        (
            "\x1b[31mCell\x1b[39m \x1b[32mIn[3]\x1b[0m, line 1",
            "\x1b[31mCell\x1b[39m \x1b[32mIn[3]\x1b[0m, line 2",
        ),
        ("\x1b[31mred", "\x1b[32mred"),
    ],
)
def test_what_differs_in_more_is_two(one: str, other: str) -> None:
    assert folded(one, other) == [((0,), one), ((1,), other)]


def test_many_values_are_counted() -> None:
    [(ranks, text)] = folded(*[f"at {hex(2**46 + 977 * r * r)}" for r in range(64)])
    assert len(ranks) == 64
    assert re.fullmatch(r"at \{(0x[0-9a-f]+, )+\.\.\. \d+ more\}", text)
    assert text.count("0x") + int(text.split()[-2]) == 64


def test_chained_and_grouped_errors_fold() -> None:
    def text(rank: int) -> str:
        return (
            'Traceback (most recent call last):\n  File "t.py", line 3, in f\n    g(rank)\n'
            f"KeyError: {rank}\n\nDuring handling of the above exception, another exception occurred:\n\n"
            '  + Exception Group Traceback (most recent call last):\n  |   File "t.py", line 9, in h\n'
            f"  | ExceptionGroup: of rank {rank} (2 sub-exceptions)\n"
            f"  +-+---------------- 1 ----------------\n"
            f"    | ValueError: port {4000 + rank}\n"
        )

    [(ranks, shown)] = folded(*map(text, range(3)))
    assert ranks == (0, 1, 2)
    assert shown == text(0).replace("KeyError: 0", "KeyError: {0-2}").replace("rank 0", "rank {0-2}").replace(
        "4000", "{4000-4002}"
    )


PIECES = st.text("ab 1290.:-x\n\x1b[0m", max_size=12)


@given(st.lists(PIECES, min_size=1, max_size=6))
def test_no_rank_is_lost_and_nothing_is_equal_that_is_not(texts: list[str]) -> None:
    groups = fold(("E", (rank,), (text,)) for rank, text in enumerate(texts))
    assert sorted(r for g in groups for r in g.ranks) == list(range(len(texts)))
    for group in groups:
        own = {texts[r] for r in group.ranks}
        if len(own) == 1:
            assert group.texts[0] in own
        else:
            assert "{" in group.texts[0]
        assert {split(texts[r])[0] for r in group.ranks} == {split(texts[group.ranks[0]])[0]}
    assert {group.texts[0] for group in groups if len(group.ranks) == 1} <= set(texts)


@given(PIECES)
def test_a_pattern_with_its_own_values_is_the_text(text: str) -> None:
    pattern, values = split(text)
    assert merge(pattern, {3: values}) == text


@given(st.dictionaries(st.integers(0, 40), st.integers(0, 3000), min_size=1))
def test_every_value_that_is_shown_is_somebodys(values: dict[int, int]) -> None:
    [group] = fold(("E", (rank,), (f"v={value};",)) for rank, value in values.items())
    assert group.ranks == tuple(sorted(values))
    inner = group.texts[0].removeprefix("v=").removesuffix(";").strip("{}")
    named = re.sub(r"\[[^]]*\] |\.\.\. \d+ more", "", inner)
    found: set[int] = set()
    for part in filter(None, (p.strip() for p in re.split("[,;]", named))):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    assert found <= set(values.values())
    if "more" not in inner:
        assert found == set(values.values())


def test_errors_keep_what_each_rank_has_said() -> None:
    failures = [RankFailure((r,), "ValueError", f"rank {r} broken", first=r == 2) for r in (2, 0, 1)]
    error = ActorError("f: 3 of 3 ranks failed", [*failures, RankFailure((3,), "KeyError", "'x'")])
    assert (
        str(error)
        == "f: 3 of 3 ranks failed\nranks 0-2 (first): ValueError: rank {0-2} broken\nrank 3: KeyError: 'x'"
    )
    assert [f.message for f in error.failures] == ["rank 2 broken", "rank 0 broken", "rank 1 broken", "'x'"]


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("train.py:3: UserWarning: slow", True),
        ("WARNING:root:rank 3 is slow", True),
        ("2026-01-01 12:00:00,1 ERROR x", True),
        ("[rank3]:[W1122 05:48:45.123 ProcessGroup.cpp:12] Warning: x", True),
        ("KeyboardInterrupt", True),
        ("[error] x", True),
        ("loss 0.5", False),
        ("error rate 0.5", False),
        ("Errors so far 3", False),
    ],
)
def test_trouble_is_told_from_news(line: str, trouble: bool) -> None:
    assert is_trouble(line) is trouble


def test_ranks_that_die_together_are_one_failure() -> None:
    ends = [
        RankExit(
            proc=r, group="train-1a2b3c", rank=r, host="n1", pid=400 + 3 * r, signal=9, point={"gpus": r}
        )
        for r in (1, 2, 3)
    ]
    failure = MeshFailure.from_ends(ends)
    assert failure.message == "ranks 1-3 are lost" and failure.ranks == (1, 2, 3)
    report = failure.report().splitlines()
    assert report[1] == "ranks 1-3: lost: the process was killed by SIGKILL (pid {403, 406, 409} on n1)"
    assert report[-1] == "at gpus=1; gpus=2; gpus=3"
