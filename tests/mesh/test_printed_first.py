"""What a rank prints before it answers is shown before the answer is had: in a script on stdout, in a
notebook in the cell.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from sample_actors import AsyncTalker, Talker

from monarch_nb._client import output
from monarch_nb._wire.address import host_of
from monarch_nb.actor import ActorError, ActorMesh, ProcMesh
from monarch_nb.actor.handle import placement_of


@pytest.fixture(scope="module")
def talker(procs: ProcMesh) -> Iterator[ActorMesh[Talker]]:
    mesh = procs.spawn("talker", Talker)
    mesh.initialized.get(30)
    yield mesh
    mesh.stop().get(30)


def said(capfd: pytest.CaptureFixture[str]) -> set[tuple[int, str]]:
    """Return what has been written by now: ranks and text of each line."""
    found = set()
    for line in capfd.readouterr().out.splitlines():
        ranks, _, text = line[1:].partition("] ")
        for part in ranks.split(","):
            first, _, last = part.partition("-")
            found |= {(rank, text) for rank in range(int(first), int(last or first) + 1)}
    return found


def on_all(text: str) -> set[tuple[int, str]]:
    return {(rank, text) for rank in range(4)}


def test_what_is_printed_while_it_is_made(procs: ProcMesh, capfd: pytest.CaptureFixture[str]) -> None:
    mesh = procs.spawn("made", Talker)
    mesh.initialized.get(30)
    assert said(capfd) == on_all("made")
    mesh.stop().get(30)


@pytest.mark.parametrize("endpoint", ["say", "err"])
def test_each_answer_comes_after_its_lines(
    talker: ActorMesh[Talker], capfd: pytest.CaptureFixture[str], endpoint: str
) -> None:
    words = {"say": "said", "err": "warned"}
    for i in range(20):
        assert set(getattr(talker, endpoint).call(i).get(30).values()) == {i}
        assert said(capfd) == on_all(f"{words[endpoint]} {i}")


def test_errors_functions_ports_streams_and_awaits(
    procs: ProcMesh, talker: ActorMesh[Talker], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ActorError, match="broken"):
        talker.slice(hosts=0, gpus=0).fail.call_one("broken").get(30)
    assert said(capfd) == {(0, "before broken")}

    procs.execute(print, "in a function").get(30)
    assert said(capfd) == on_all("in a function")

    assert set(talker.send.call("x").get(30).values()) == {"x"}
    assert said(capfd) == on_all("sent x")

    shown: set[tuple[int, str]] = set()
    for i, future in enumerate(talker.say.stream("y"), 1):
        assert future.get(30) == "y"
        shown |= said(capfd)
        assert len(shown) >= i
    assert shown == on_all("said y")

    async def waits() -> object:
        return await talker.say.call("z")

    asyncio.run(waits())
    assert said(capfd) == on_all("said z")


def test_async_endpoints(procs: ProcMesh, capfd: pytest.CaptureFixture[str]) -> None:
    mesh = procs.spawn("async_talker", AsyncTalker)
    for i in range(5):
        mesh.say.call(i).get(30)
        assert said(capfd) == on_all(f"said {i}")
    mesh.stop().get(30)


def test_a_host_process_that_hangs_holds_an_answer_up_only_for_a_while(
    procs: ProcMesh,
    talker: ActorMesh[Talker],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = procs._session.connection
    assert connection is not None
    if any(host_of(proc) for proc in placement_of(procs).procs):
        pytest.skip("answers from other machines come through the controller")
    near = talker.slice(hosts=0)
    near.silent.call(0).get(30)
    os.kill(connection.pid, signal.SIGSTOP)
    try:
        monkeypatch.setattr(output, "CATCH_UP_S", 600.0)
        assert set(near.silent.call(1).get(30).values()) == {1}  # nothing was printed: nothing is waited for
        monkeypatch.setattr(output, "CATCH_UP_S", 0.2)
        assert set(near.say.call(2).get(30).values()) == {2}
        assert said(capfd) == set()
    finally:
        os.kill(connection.pid, signal.SIGCONT)
    monkeypatch.setattr(output, "CATCH_UP_S", 60.0)
    near.say.call(3).get(30)
    assert said(capfd) == {(rank, f"said {i}") for rank in (0, 1) for i in (2, 3)}


def test_a_callback_that_asks_for_the_value_does_not_wait(talker: ActorMesh[Talker]) -> None:
    got: list[object] = []
    future = talker.say.call("w")
    done: Callable[[object], None] = lambda _future: got.append(sorted(future.get().values()))  # noqa: E731
    future.add_done_callback(done)
    future.get(30)
    assert got == [["w"] * 4]
