"""What crosses processes comes back as it went, and nothing else is taken."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._client.feed import Feed
from monarch_nb._protocol.exits import RankExit
from monarch_nb.exceptions import describe_end

EXIT = RankExit(7, "workers", 3, "gpu-1", 4711)
numbers = st.integers(0, 1 << 62)
exits = st.builds(
    RankExit, proc=numbers, group=st.text(), rank=numbers, host=st.text(), pid=numbers, signal=st.none() | numbers, exit_code=st.none() | numbers,
    stopped=st.booleans(), reason=st.text(), last_lines=st.text(), point=st.dictionaries(st.text(), numbers), policy=st.text(), restarted=st.booleans(),
    told=st.lists(st.tuples(numbers, numbers)).map(tuple), heard=st.just(False),
)  # fmt: skip


@given(exits)
def test_an_exit_survives_each_way_that_it_is_sent(end: RankExit) -> None:
    assert RankExit.of(end.plain()) == end
    assert RankExit.of(pickle.loads(pickle.dumps(end.plain()))) == end
    assert RankExit.of(json.loads(json.dumps(end.plain()))) == end


def test_an_exit_on_its_way_is_plain() -> None:
    """Whoever reads it needs no class of ours: the journal, a front end."""
    plain = replace(EXIT, point={"hosts": 1}, told=((1, 2),), heard=True).plain()
    assert set(plain) == {each.name for each in fields(RankExit)} - {"heard"}, "whether it's heard is each process' own business"
    assert {type(value) for value in plain.values()} <= {int, str, bool, dict, list, type(None)}


@pytest.mark.parametrize("change", [{"colour": "red"}, {"proc": None, "Proc": 1}], ids=["unknown", "misspelt"])
def test_an_exit_of_other_fields_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"colour|Proc"):
        RankExit.of({**EXIT.plain(), **change})
    with pytest.raises(TypeError, match="proc"):
        RankExit.of({"rank": 1})


def test_a_programs_end_that_nobody_watches_is_no_cells_business() -> None:
    """A controller's program has left while a cell runs: that the end names no watchers was no list, and asking raised in the reading thread."""
    feed = Feed.__new__(Feed)
    feed.office, feed.ref, feed.ready = type("Office", (), {"me": 5})(), 9, False  # type: ignore[assignment]
    assert not feed.hears_of(EXIT)
    assert feed.hears_of(replace(EXIT, told=((5, 9),)))


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"signal": 9, "last_lines": "a\nb"}, "the process was killed by SIGKILL (pid 4711 on gpu-1)\nits last output:\n  | a\n  | b"),
        ({"exit_code": 3}, "the process exited with code 3 (pid 4711 on gpu-1)"),
        ({"stopped": True, "last_lines": "a"}, "the process was stopped (pid 4711 on gpu-1)"),
        ({"reason": "was restarted", "pid": 0, "signal": 9}, "the process was restarted (on gpu-1)"),
    ],
)
def test_an_exit_in_words(known: dict[str, Any], text: str) -> None:
    assert describe_end(replace(EXIT, **known)) == text
