"""What crosses processes comes back as it went, and nothing else is taken."""

from __future__ import annotations

import ast
import json
import pickle
import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from monarch_nb._client.feed import Feed
from monarch_nb._protocol import states
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.states import HostState, ProcState, RankState, StopState
from monarch_nb.exceptions import describe_end

EXIT = RankExit(7, "workers", 3, "gpu-1", 4711)
numbers = st.integers(0, 1 << 62)
exits = st.builds(
    RankExit,
    proc=numbers,
    group=st.text(),
    rank=numbers,
    host=st.text(),
    pid=numbers,
    signal=st.none() | numbers,
    exit_code=st.none() | numbers,
    stopped=st.booleans(),
    reason=st.text(),
    last_lines=st.text(),
    point=st.dictionaries(st.text(), numbers),
    policy=st.text(),
    restarted=st.booleans(),
    notified=st.lists(st.tuples(numbers, numbers)).map(tuple),
    handled=st.just(False),
)


@given(exits)
def test_an_exit_survives_each_way_that_it_is_sent(end: RankExit) -> None:
    assert RankExit.of(end.plain()) == end
    assert RankExit.of(pickle.loads(pickle.dumps(end.plain()))) == end
    assert RankExit.of(json.loads(json.dumps(end.plain()))) == end


def test_an_exit_on_its_way_is_plain() -> None:
    """Whoever reads it needs no class of ours: the journal, a front end."""
    plain = replace(EXIT, point={"hosts": 1}, notified=((1, 2),), handled=True).plain()
    assert set(plain) == {each.name for each in fields(RankExit)} - {"handled"}, (
        "whether it's heard is each process' own business"
    )
    assert {type(value) for value in plain.values()} <= {int, str, bool, dict, list, type(None)}


@pytest.mark.parametrize(
    "change", [{"colour": "red"}, {"proc": None, "Proc": 1}], ids=["unknown", "misspelt"]
)
def test_an_exit_of_other_fields_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"colour|Proc"):
        RankExit.of({**EXIT.plain(), **change})
    with pytest.raises(TypeError, match="proc"):
        RankExit.of({"rank": 1})


def test_a_programs_end_that_nobody_watches_is_no_cells_business() -> None:
    """A controller's program has left while a cell runs: that the end names no watchers was no list, and
    asking raised in the reading thread.
    """
    feed = Feed.__new__(Feed)
    feed.transport, feed.ref, feed.ready = type("Transport", (), {"me": 5})(), 9, False  # type: ignore[assignment]
    assert not feed.handles_end(EXIT)
    assert feed.handles_end(replace(EXIT, notified=((5, 9),)))


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (
            {"signal": 9, "last_lines": "a\nb"},
            "the process was killed by SIGKILL (pid 4711 on gpu-1)\nits last output:\n  | a\n  | b",
        ),
        ({"exit_code": 3}, "the process exited with code 3 (pid 4711 on gpu-1)"),
        ({"stopped": True, "last_lines": "a"}, "the process was stopped (pid 4711 on gpu-1)"),
        ({"reason": "was restarted", "pid": 0, "signal": 9}, "the process was restarted (on gpu-1)"),
    ],
)
def test_an_exit_in_words(known: dict[str, Any], text: str) -> None:
    assert describe_end(replace(EXIT, **known)) == text


@pytest.mark.parametrize("states", [HostState, ProcState, RankState, StopState])
def test_a_state_is_its_word_wherever_it_goes(states: type[StrEnum]) -> None:
    for state in states:
        assert state == state.value == f"{state}" == json.loads(json.dumps(state))
        assert repr(state) == repr(state.value), "as people have seen it in `mesh.status()` so far"
        assert states(state.value) is state is pickle.loads(pickle.dumps(state))
    with pytest.raises(ValueError, match="sleepy"):
        states("sleepy")


def test_each_state_of_a_process_is_one_that_people_may_see() -> None:
    """A rank's process that doesn't run is shown by its own state."""
    assert {state.value for state in ProcState} - {"running"} <= {state.value for state in RankState}


def test_the_front_end_knows_the_same_states() -> None:
    text = (Path(__file__).parents[2] / "labextension/src/state.ts").read_text()
    (union,) = re.findall(r"(?m)^ *'starting' .*;$", text)
    assert set(re.findall(r"'(\w+)'", union)) == {state.value for state in RankState}


def test_no_state_is_compared_with_a_word() -> None:
    """A word that is misspelt would be equal to nothing, and nobody would hear of it."""
    package = Path(__file__).parents[2] / "monarch_nb"
    assert [
        f"{file}:{node.lineno}: {ast.unparse(node)}"
        for file in package.rglob("*.py")
        if "testing" not in file.parts  # faults have kinds of their own
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Attribute)
        and node.left.attr in FIELDS
        and words_in(node.comparators[0]) & WORDS
    ] == []


FIELDS = {"how", "kind", "method", "mode", "on_failure", "phase", "reason", "state", "status"}
WORDS = {
    word.value
    for each in vars(states).values()
    if isinstance(each, type) and issubclass(each, StrEnum)
    for word in each
    if word.value
}


def words_in(node: ast.expr) -> set[object]:
    """Return the constants that something is compared with."""
    each = node.elts if isinstance(node, ast.Tuple | ast.Set | ast.List) else [node]
    return {one.value for one in each if isinstance(one, ast.Constant)}
