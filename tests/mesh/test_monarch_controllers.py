"""What a Monarch program does with controllers: they live in its own process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from monarch_nb._client import session as sessions
from monarch_nb._client.session import Session
from monarch_nb._protocol.programs import Goodbye
from monarch_nb.actor import Actor, Future, ProcMesh, endpoint, get_or_spawn_controller
from monarch_nb.exceptions import WrongArguments

T = 60
RELEASED = threading.Event()


class Tally(Actor):
    def __init__(self, start: int = 0) -> None:
        self.num = start

    @endpoint
    def add(self, num: int) -> int:
        self.num += num
        return self.num

    @endpoint
    def where(self) -> int:
        return os.getpid()

    @endpoint
    def wait(self) -> None:
        RELEASED.wait(T)


class Member(Actor):
    @endpoint
    def add(self, name: str, num: int) -> int:
        return get_or_spawn_controller(name, Tally, 100).get(T).add.call_one(num).get(T)  # type: ignore[no-any-return, attr-defined]


def test_a_controller_is_in_the_program_and_actors_find_it(procs: ProcMesh) -> None:
    name = f"found from {procs.name}"
    tally = get_or_spawn_controller(name, Tally, 5).get(T)
    assert tally.where.call_one().get(T) == os.getpid()
    sums = procs.spawn("member", Member).add.call(name, 1).get(T)
    assert sorted(sums.values()) == [6, 7, 8, 9]


def test_a_controller_that_actors_ask_for_first_is_in_the_program(procs: ProcMesh) -> None:
    name = f"first asked for by {procs.name}"
    sums = procs.spawn("member", Member).add.call(name, 1).get(T)
    assert sorted(sums.values()) == [101, 102, 103, 104]
    assert get_or_spawn_controller(name, Tally).get(T).where.call_one().get(T) == os.getpid()
    with pytest.raises(WrongArguments, match="Tally"):
        get_or_spawn_controller(name, Tally, begin=1)


@pytest.fixture
def other_program() -> Iterator[Session]:
    RELEASED.clear()
    mine = sessions.current()
    assert mine.connection is not None
    other = Session.connect(mine.connection, "another program")
    yield other
    RELEASED.set()
    other.close()
    sessions.use(mine)


def test_a_controller_ends_with_its_program_and_the_next_asker_spawns_another(
    procs: ProcMesh, other_program: Session
) -> None:
    mine, name = sessions.current(), f"short-lived, beside {procs.name}"
    sessions.use(other_program)
    get_or_spawn_controller(name, Tally, 1).get(T).add.call_one(1).get(T)
    sessions.use(mine)
    theirs = get_or_spawn_controller(name, Tally).get(T)
    assert theirs.add.call_one(1).get(T) == 3
    waiting: Future[None] = theirs.wait.call_one()
    other_program.tell(Goodbye())
    assert "another program" in str(waiting.exception(T))
    assert get_or_spawn_controller(name, Tally, 50).get(T).add.call_one(1).get(T) == 51


class Echo(Actor):
    @endpoint
    def echo(self, number: int) -> int:
        return number


@pytest.mark.timeout(120)
def test_a_controller_that_waits_keeps_nobody_from_the_answers_of_a_stream(procs: ProcMesh) -> None:
    """Its thread reads for all; answers from another host come several in one message, and each has its
    own waiter.
    """
    get_or_spawn_controller(f"waits in {procs.name}", Tally).get(T).where.call_one().get(T)
    echo = procs.spawn("echo", Echo)
    for number in range(100):
        for answer in echo.echo.stream(number):
            assert answer.get(600) == number
    echo.stop().get(T)
