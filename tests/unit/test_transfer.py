"""Transfers as those who wait see them: time-outs, cancellation, choice of path, the end of the process'
data plane.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from monarch_nb.exceptions import MeshUsageError, PathFailed, RankTimeout, RDMAError, TransferTimeout
from monarch_nb.rdma import RDMAAction, RDMABuffer, data_plane
from monarch_nb.rdma.data_plane import MAX_MOVES, DataPlane
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.link import LoopLink
from monarch_nb.rdma.local_future import LocalFuture
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.path import Job, Path, PathUnavailable

BIG = 1 << 20  # too large to be moved in the thread that asks


class PausedPath(Path):
    """A path that moves nothing until `open` is set."""

    name = "gate"

    def __init__(self, data_plane: DataPlane) -> None:
        super().__init__(data_plane)
        self.entered, self.open = threading.Event(), threading.Event()

    def refusal(self, handle: Handle, local: Memory) -> str:
        return ""

    def transfer(self, job: Job) -> None:
        self.entered.set()
        while not self.open.wait(job.remaining_s(0.01)):
            job.check()
        job.moved(job.nbytes)


class UnavailablePath(PausedPath):
    """A path that is unavailable, which shows only when it is tried."""

    name = "barred"

    def transfer(self, job: Job) -> None:
        raise PathUnavailable("a tree lies across it")


class FailingPath(PausedPath):
    name = "broken"

    def transfer(self, job: Job) -> None:
        raise PathFailed("the bridge fell")


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Iterator[DataPlane]:
    """A data plane without a mesh, whose first path is barred."""
    found = DataPlane(LoopLink())
    monkeypatch.setattr(data_plane, "_data_plane", found)
    theirs = {p.name: p for p in (UnavailablePath(found), PausedPath(found), FailingPath(found))}
    found._paths = {"barred": theirs["barred"], **found.paths, **theirs}
    yield found
    found.close()


def test_the_next_path_is_tried_and_the_receipt_says_why(plane: DataPlane) -> None:
    room = bytearray(5)
    receipt = RDMABuffer(b"hello").read_into(room).get()
    assert (bytes(room), receipt.path, receipt.why_not) == (
        b"hello",
        "local",
        {"barred": "a tree lies across it"},
    )
    assert str(receipt).endswith("(not by barred: a tree lies across it)")
    with pytest.raises(PathFailed, match=r"no path moves bytes between .*barred: a tree lies across it"):
        RDMABuffer(b"hello").read_into(room, path="barred").get()


def test_a_transfer_that_takes_too_long(plane: DataPlane) -> None:
    transfer = RDMABuffer(bytes(BIG)).read_into(bytearray(BIG), timeout=0.05, path="gate")
    with pytest.raises(TransferTimeout, match="0 of 1,048,576 bytes were moved; give it a longer timeout="):
        transfer.get()
    assert transfer.done()


def test_to_stop_waiting_is_not_the_end_of_it(plane: DataPlane) -> None:
    gate = plane.paths["gate"]
    assert isinstance(gate, PausedPath)
    transfer = RDMABuffer(bytes(BIG)).read_into(bytearray(BIG), path="gate")
    with pytest.raises(RankTimeout, match=r"not over within 0.01 s; it goes on"):
        transfer.get(timeout=0.01)
    assert "0 bytes of 1 MiB" in repr(transfer)
    gate.open.set()
    assert transfer.get().num_bytes == BIG
    assert transfer.then(lambda receipt: receipt.path).get() == "gate"


def test_cancelled(plane: DataPlane) -> None:
    gate = plane.paths["gate"]
    assert isinstance(gate, PausedPath)
    transfer = RDMABuffer(bytes(BIG)).read_into(bytearray(BIG), path="gate")
    gate.entered.wait()
    transfer.cancel()
    with pytest.raises(RDMAError, match="was cancelled after 0 of"):
        transfer.get()


def test_awaiting_one_that_is_cancelled_with_its_task(plane: DataPlane) -> None:
    async def main() -> None:
        gate = plane.paths["gate"]
        assert isinstance(gate, PausedPath)
        transfer = RDMABuffer(bytes(BIG)).read_into(bytearray(BIG), path="gate")

        async def wait() -> None:
            await transfer

        task = asyncio.ensure_future(wait())
        await asyncio.to_thread(gate.entered.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert isinstance(await asyncio.to_thread(transfer.exception), RDMAError)
        gate.open.set()
        assert (await RDMABuffer(bytes(BIG)).read_into(bytearray(BIG), path="gate")).num_bytes == BIG

    asyncio.run(main())


def test_one_failure_of_many_is_the_failure_of_all(plane: DataPlane) -> None:
    action = RDMAAction()
    for _ in range(3):
        action.read_remote(bytearray(BIG), RDMABuffer(bytes(BIG)))
    with pytest.raises(PathFailed, match="the bridge fell"):
        action.submit(path="broken").get()
    assert action.submit().get().num_bytes == 3 * BIG


def test_the_end_calls_off_what_is_on_its_way(plane: DataPlane) -> None:
    gate = plane.paths["gate"]
    assert isinstance(gate, PausedPath)
    transfer = RDMABuffer(bytes(BIG)).read_into(bytearray(BIG), timeout=None, path="gate")
    gate.entered.wait()
    plane.close()
    with pytest.raises(RDMAError, match="has left its mesh"):
        transfer.get()
    with pytest.raises(RDMAError, match="has left its mesh"):
        plane.submit(transfer.jobs)


def test_those_that_had_not_begun_end_too(plane: DataPlane) -> None:
    gate = plane.paths["gate"]
    assert isinstance(gate, PausedPath)
    buffer = RDMABuffer(bytes(BIG))
    transfers = [buffer.read_into(bytearray(BIG), timeout=None, path="gate") for _ in range(MAX_MOVES + 3)]
    gate.entered.wait()
    plane.close()
    assert all(isinstance(transfer.exception(), RDMAError) for transfer in transfers)


def test_nothing_asked_nothing_done(plane: DataPlane) -> None:
    with pytest.raises(MeshUsageError, match="timeout=0: "):
        RDMABuffer(b"a").read_into(bytearray(1), timeout=0)
    assert RDMABuffer(b"").read_into(bytearray(0)).get().num_bytes == 0


def test_a_function_in_a_thread() -> None:
    assert LocalFuture.of(lambda: 3).then(lambda n: n + 1).get() == 4
    failed = LocalFuture.of(lambda: 1 // 0)
    assert isinstance(failed.exception(), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        failed.then(str).get()
    notified: list[bool] = []
    LocalFuture.done_with(1).add_done_callback(lambda future: notified.append(future.done()))
    assert notified == [True]
