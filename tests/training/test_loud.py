"""Results that nobody asks for: what has failed is said."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from own_meshes import own_mesh
from waiting import wait_until

from monarch_nb.exceptions import ActorError
from monarch_nb.mesh import Mesh


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("loud", {"gpus": 2}) as found:
        yield found


def picky(x: int) -> int:
    if x in (2, 3):
        raise ValueError(f"not {x}")
    return x


def said_within(capsys: pytest.CaptureFixture[str], text: str) -> str:
    """Wait until something is said on stderr, and return all of it."""
    output: list[str] = []

    def hear() -> bool:
        output.append(capsys.readouterr().err)
        return text in "".join(output)

    wait_until(hear, f"{text} on stderr")
    return "".join(output)


def test_a_map_that_is_dropped_unread_says_what_failed(
    mesh: Mesh, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh.map(picky, range(6))
    output = said_within(capsys, "not ")
    assert "the map of picky has failed, and its results were not read (2 items): picky, item" in output
    runs = [mesh.map(picky, range(6))]
    wait_until(lambda: runs[0].num_done == 6, "all done")
    assert repr(runs[0]) == "<MapRun of picky: 6 of 6 done, 2 failed>"
    runs.clear()
    assert "(2 items)" in said_within(capsys, "its results were not read")


def broken() -> Iterator[int]:
    yield 1
    raise OSError("the disk is gone")


def test_a_map_whose_items_raise_says_so(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    mesh.map(picky, broken(), ordered=False)
    assert "the map of picky has failed" in said_within(capsys, "the disk is gone")


def test_what_was_read_or_given_up_is_not_said(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ActorError):
        mesh.map(picky, range(6)).get()
    found = mesh.map(picky, range(6), return_exceptions=True).get()
    assert [type(each) for each in found[2:4]] == [ActorError] * 2
    given_up = mesh.map(picky, range(6))
    given_up.cancel()
    del given_up, found
    gc.collect()
    mesh.execute(int).get()
    assert not capsys.readouterr().err


def endless(taken: list[int]) -> Iterator[int]:
    while True:
        taken.append(0)
        yield 1


def test_a_loop_that_is_left_gives_the_rest_up(mesh: Mesh) -> None:
    taken: list[int] = []
    for _ in mesh.map(picky, endless(taken)):
        break
    num = len(taken)
    assert mesh.map(picky, [1] * 20).get() == [1] * 20
    assert len(taken) <= num + 1


def test_a_task_whose_future_is_dropped_says_so(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    with mesh.executor() as pool:
        pool.submit(picky, 2)
        assert pool.submit(picky, 1).result() == 1
        asked = pool.submit(picky, 3)
        assert isinstance(asked.exception(), ValueError)
        del asked
    gc.collect()
    output = said_within(capsys, "not 2")
    assert output.count("a task of picky has failed, and its results were not read") == 1
    assert "not 3" not in output
