"""Models with versions: readers get all of one step or all of another, and may wait for the next."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from monarch_nb.actor import Actor, ActorMesh, HostMesh, ProcMesh, endpoint
from monarch_nb.exceptions import ActorError, MeshUsageError, TransferTimeout
from monarch_nb.rdma import Published, load_into, publish, versions

NUM = 1 << 17


class Trainer(Actor):
    """Every element of its tensors is the number of the step that has written it."""

    def __init__(self) -> None:
        self.state = {f"w{i}": torch.zeros(NUM) for i in range(4)}
        self.published: Any = None
        self.stop = threading.Event()

    @endpoint
    def publish(self, version: int | None) -> Published:
        self.published = publish(self.state, version=version)
        return self.published

    @endpoint
    def step(self, fails: bool = False) -> int:
        return self._step(fails)

    def _step(self, fails: bool = False) -> int:
        with self.published.updating() as version:
            for i, tensor in enumerate(self.state.values()):
                if fails and i == 2:
                    raise RuntimeError("out of memory")
                tensor.fill_(version)
        return int(version)

    @endpoint
    def train(self) -> None:
        """Take steps in a thread, with pauses in which somebody may read."""

        def work() -> None:
            while not self.stop.wait(0.002):
                self._step()

        threading.Thread(target=work, daemon=True).start()

    @endpoint
    def train_without_a_gap(self) -> None:
        """Take steps in a thread, one right after the other; most of the time is spent in the step."""

        def work() -> None:
            while not self.stop.is_set():
                with self.published.updating() as version:
                    for tensor in self.state.values():
                        tensor.fill_(version)
                        self.stop.wait(0.01)

        threading.Thread(target=work, daemon=True).start()

    @endpoint
    def end(self) -> int:
        self.stop.set()
        return os.getpid()


class Reader(Actor):
    def __init__(self) -> None:
        self.state = {f"w{i}": torch.zeros(NUM) for i in range(4)}

    @endpoint
    def load(self, source: Any, min_version: int | None, timeout: float) -> tuple[int | None, set[float]]:
        receipt = load_into(self.state, source, timeout, min_version=min_version)
        return receipt.version, {float(x) for t in self.state.values() for x in t.unique()}

    @endpoint
    def update(self, source: Published) -> None:
        with source.updating():
            pass


@pytest.fixture
def pair(host_mesh: HostMesh) -> Iterator[tuple[ActorMesh[Trainer], ActorMesh[Reader], ProcMesh]]:
    procs = host_mesh.spawn_procs(per_host={"gpus": 2})
    procs = procs.flatten("ranks") if len(procs.extent) > 1 else procs.rename(gpus="ranks")
    last = procs.sizes["ranks"] - 1
    trainer = procs.slice(ranks=0).spawn("trainer", Trainer)
    reader = procs.slice(ranks=last).spawn("reader", Reader)
    yield trainer, reader, procs
    procs.stop().get(30)


def test_a_reader_never_gets_a_mix(pair: Any) -> None:
    trainer, reader, _ = pair
    source = trainer.publish.call_one(0).get(60)
    trainer.train.call_one().get(60)
    newest = 0
    for _ in range(20):
        version, values = reader.load.call_one(source, newest + 1, 60.0).get(90)
        assert values == {float(version)} and version > newest
        newest = version
    trainer.end.call_one().get(60)


def test_a_trainer_that_leaves_no_gap_starves_no_reader(pair: Any) -> None:
    trainer, reader, _ = pair
    source = trainer.publish.call_one(0).get(60)
    trainer.train_without_a_gap.call_one().get(60)
    newest = 0
    for _ in range(3):
        version, values = reader.load.call_one(source, newest + 1, 20.0).get(90)
        assert values == {float(version)} and version > newest
        newest = version
    assert source.wait(newest + 1, timeout=20.0) > newest  # it goes on
    trainer.end.call_one().get(60)


def test_a_reader_that_has_asked_and_died_holds_the_trainer_up_once(pair: Any) -> None:
    trainer, _, _ = pair
    source = trainer.publish.call_one(0).get(60)
    versions.Turn(source.counters, None)._ask()
    assert [trainer.step.call_one().get(60) for _ in range(2)] == [1, 2]
    assert source.wait() == 2


def test_it_waits_for_the_next_version(pair: Any) -> None:
    trainer, reader, _ = pair
    source = trainer.publish.call_one(5).get(60)
    assert source.wait() == 5
    assert reader.load.call_one(source, None, 60.0).get(60) == (5, {0.0})
    waiting = reader.load.call_one(source, 7, 60.0)
    assert trainer.step.call_one().get(60) == 6
    assert not waiting.done()
    assert trainer.step.call_one().get(60) == 7
    assert waiting.get(60) == (7, {7.0})
    with pytest.raises(ActorError, match="version 9 wasn't published in time: publishers hold 7"):
        reader.load.call_one(source, 9, 3.0).get(60)
    with pytest.raises(TransferTimeout, match="publishers hold 7"):
        source.wait(8, timeout=1.0)


def test_a_step_that_fails_is_no_version(pair: Any) -> None:
    trainer, reader, _ = pair
    source = trainer.publish.call_one(0).get(60)
    with pytest.raises(ActorError, match="out of memory"):
        trainer.step.call_one(True).get(60)
    with pytest.raises(ActorError, match="1 of 1 publishers are writing"):
        reader.load.call_one(source, None, 3.0).get(60)
    assert trainer.step.call_one().get(60) == 1
    assert reader.load.call_one(source, None, 60.0).get(60) == (1, {1.0})


def test_several_publishers_are_at_one_version(pair: Any) -> None:
    _, _, procs = pair
    trainers = procs.spawn("trainers", Trainer)
    source = Published.join(trainers.publish.call(0).get(60).values())
    trainers.slice(ranks=0).step.call_one().get(60)
    with pytest.raises(TransferTimeout, match="version that all publishers hold wasn't published in time: "
                       "publishers hold 0, 1"):  # fmt: skip
        source.wait(timeout=1.0)  # on a busy machine the first look alone takes a while
    for rank in range(1, procs.sizes["ranks"]):
        trainers.slice(ranks=rank).step.call_one().get(60)
    assert source.wait() == 1


def test_a_look_that_gets_no_time_says_what_the_one_before_it_saw(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time may be up within a look, instead of between two."""
    trainer, _, _ = pair
    source = trainer.publish.call_one(3).get(60)
    looks, read = [0], versions._read

    def read_late(counters: Any, deadline: float | None) -> list[tuple[int, int]]:
        looks[0] += 1
        if looks[0] > 1:
            raise TransferTimeout("the read was not over in time")
        return read(counters, deadline)

    monkeypatch.setattr(versions, "_read", read_late)
    with pytest.raises(TransferTimeout, match=r"^version 4 wasn't published in time: publishers hold 3$"):
        source.wait(4, timeout=60.0)
    assert looks == [2]


def test_bad_input_is_named(pair: Any) -> None:
    trainer, reader, _ = pair
    with pytest.raises(ActorError, match="a version is a whole number of at least 0, not -1"):
        trainer.publish.call_one(-1).get(60)
    bare = trainer.publish.call_one(None).get(60)
    with pytest.raises(ActorError, match="published without a version"):
        reader.load.call_one(bare, 1, 60.0).get(60)
    assert reader.load.call_one(bare, None, 60.0).get(60) == (None, {0.0})
    source = trainer.publish.call_one(3).get(60)
    with pytest.raises(ActorError, match="this process hasn't published this model"):
        reader.update.call_one(source).get(60)
    with (
        pytest.raises(MeshUsageError, match="above 3"),
        publish({"a": torch.zeros(1)}, version=3).updating(3),
    ):
        pass


def test_a_publisher_that_dies_is_told_at_once(pair: Any) -> None:
    trainer, reader, _ = pair
    source = trainer.publish.call_one(0).get(60)
    waiting = reader.load.call_one(source, 1, 60.0)
    os.kill(trainer.end.call_one().get(60), signal.SIGKILL)
    with pytest.raises(ActorError, match="BufferGone"):
        waiting.get(60)
