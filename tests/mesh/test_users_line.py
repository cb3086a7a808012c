"""Everything that names a line of the user's names the same one: live state, `%mesh why`, stacks, the
debugger, tracebacks. On one host and on two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
from own_meshes import own_mesh
from waiting import wait_until

from monarch_nb._debug import MeshDebugger, Stop
from monarch_nb._stacks import innermost, stacks_text
from monarch_nb.mesh import Mesh

CELL = """
from monarch_nb.actor import Actor, endpoint, this_proc
import asyncio

class Slow(Actor):
    @endpoint
    async def answer(self):
        await asyncio.sleep(600)

def ask(actor):
    return actor.answer.call_one().get()

slow = this_proc().spawn("slow", Slow)
ask(slow)
"""
LINE = "return actor.answer.call_one().get()"
NUMBER = 5
ROW = CELL.splitlines().index(f"    {LINE}") + 1
ONE_OF_OURS = re.compile(r"monarch_nb/[a-z_]+(/[a-z_]+)*\.py")


@pytest.fixture(scope="module", params=[0, 2], ids=["one_host", "two_hosts"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    with own_mesh(
        f"line{request.param}", {"gpus": 2 if not request.param else 1}, num_hosts=request.param
    ) as found:
        yield found


def is_in_get(stack: str) -> bool:
    return "in get\n" in stack and ONE_OF_OURS.search(stack) is not None


@pytest.fixture
def waiting(mesh: Mesh) -> Iterator[Mesh]:
    """A mesh whose cell waits in `Future.get`."""
    run = mesh.submit(CELL, number=NUMBER)
    wait_until(
        lambda: all(is_in_get(each["stacks"]["MainThread"]) for each in mesh.stacks().values()),
        "a cell that waits in Future.get",
    )
    try:
        yield mesh
    finally:
        mesh.interrupt()
        run.wait(60.0)


def test_all_that_shows_a_cell_that_waits_for_an_answer_names_its_line(waiting: Mesh) -> None:
    def lines() -> set[str]:
        return {rank.line for rank in waiting.status().ranks}

    wait_until(lambda: lines() == {f"In [{NUMBER}], line {ROW}: {LINE}"}, f"the live line; there's {lines()}")
    stacks = waiting.stacks()
    assert {innermost(each) for each in stacks.values()} == {
        f"is at In[{NUMBER}], line {ROW}, in ask: {LINE}"
    }
    shown = stacks_text(stacks)
    assert f"  In[{NUMBER}], line {ROW}, in ask\n    {LINE}\n" in shown
    assert not ONE_OF_OURS.search(shown)
    (row, _) = [
        row for row in waiting.why().rows if row.line.startswith(f"cell [{NUMBER}] line {ROW} in ask")
    ]
    assert row.line.endswith(", Future.get")


FAILS = """
from monarch_nb.actor import Actor, endpoint, this_proc

class Failing(Actor):
    @endpoint
    def answer(self, *arguments):
        raise ValueError("no")

class Looking:
    def __reduce__(self):
        breakpoint()
        return Looking, ()

def ask(actor, *arguments):
    return actor.answer.call_one(*arguments).get()

failing = this_proc().spawn("failing", Failing)
"""
CALL = "return actor.answer.call_one(*arguments).get()"
ASKS = FAILS.splitlines().index(f"    {CALL}") + 1
LAST = len(FAILS.splitlines()) + 1


def where(debugger: MeshDebugger, stops: Sequence[Stop]) -> set[str]:
    """Return what `where` says at stops."""
    return set(debugger.send(stops, "where").texts.values())


def test_tracebacks_and_the_debugger_name_it_too(mesh: Mesh) -> None:
    """An error that an answer brings is raised in `Future.get`: what's shown, and where the debugger
    stands, is the line that has called it.
    """
    failures = mesh.submit(FAILS + "ask(failing)", number=NUMBER).wait(60.0).failures
    for failure in failures.values():
        assert f"Cell In[{NUMBER}], line {ASKS}, in ask" in re.sub("\x1b[^m]*m", "", failure.traceback)
        assert not ONE_OF_OURS.search(failure.traceback)
    debugger = mesh.debugger()
    debugger.post_mortem()
    stops = debugger.stops()
    assert len(stops) == 2
    assert {(stop.file, stop.line, stop.function) for stop in stops} == {(f"In [{NUMBER}]", ASKS, "ask")}
    assert where(debugger, stops) == {
        f"  In [{NUMBER}]({LAST}) <module>(): ask(failing)\n> In [{NUMBER}]({ASKS}) ask(): {CALL}"
    }
    debugger.send(stops, "quit")


def test_the_debugger_leaves_out_what_stands_between_the_users_frames(mesh: Mesh) -> None:
    """A value is taken apart by this package and cloudpickle: its method is the user's again."""
    run = mesh.submit(FAILS + "ask(failing, Looking())", number=NUMBER)
    debugger = mesh.debugger()
    stops = wait_until(lambda: found if len(found := debugger.stops()) == 2 else None, "two stops")
    assert {(stop.file, stop.function) for stop in stops} == {(f"In [{NUMBER}]", "__reduce__")}
    (shown,) = where(debugger, stops)
    debugger.send(stops, "quit")
    assert len(run.wait(60.0).failures) == 2
    assert f"  In [{NUMBER}]({ASKS}) ask(): {CALL}\n" in shown, "a frame above those of this package"
    assert shown.splitlines()[-1].startswith(f"> In [{NUMBER}]") and "__reduce__" in shown.splitlines()[-1]
    assert not ONE_OF_OURS.search(shown)
