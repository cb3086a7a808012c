"""Rollouts between meshes: producers are held back, consumers wait, and nothing is lost but with its
holder.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from own_meshes import own_mesh
from waiting import wait_until

from monarch_nb.actor import Actor, endpoint
from monarch_nb.exceptions import ActorError, DeviceMeshError, SupervisionError
from monarch_nb.mesh import Mesh
from monarch_nb.rl import QueueState, ReplayBuffer, RolloutQueue

T = 60.0


@pytest.fixture(scope="module")
def generators() -> Iterator[Mesh]:
    with own_mesh("generators", {"gpus": 2}) as found:
        yield found


@pytest.fixture(scope="module")
def trainer() -> Iterator[Mesh]:
    with own_mesh("trainer", {"gpus": 1}) as found:
        yield found


class Generator(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def make(self, queue: Any, first: int, num: int) -> None:
        """Put rollouts from another mesh."""
        for i in range(first, first + num):
            queue.put.call_one({"i": i}, i).get(T)


def state(queue: Any) -> QueueState:
    found: QueueState = queue.state.call_one().get(T)
    return found


def test_a_full_queue_holds_generators_of_another_mesh_back(generators: Mesh, trainer: Mesh) -> None:
    queue = trainer.spawn("rollouts", RolloutQueue, 4)
    makers = generators.spawn("makers", Generator)
    making = [makers.slice(gpus=g).make.call_one(queue, 100 * g, 6) for g in range(2)]
    wait_until(lambda: state(queue).num_held_back == 2, "both generators wait")
    assert state(queue).num_held == 4 and not any(each.done() for each in making)
    taken = [r for _ in range(4) for r in queue.get.call_one(3).get(T)]
    assert sorted(r.value["i"] for r in taken) == [*range(6), *range(100, 106)]
    assert all(r.version == r.value["i"] for r in taken)
    for each in making:
        each.get(T)


def test_a_generator_that_is_killed_holds_nobody_up(generators: Mesh, trainer: Mesh) -> None:
    queue = trainer.spawn("survives", RolloutQueue, 2)
    makers = generators.spawn("mortal", Generator)
    making = [makers.slice(gpus=g).make.call_one(queue, 100 * g, 4) for g in range(2)]
    wait_until(lambda: state(queue).num_held_back == 2, "both generators wait")
    os.kill(_pid(generators), signal.SIGKILL)
    with pytest.raises(SupervisionError):
        making[1].get(T)
    generators.heal()
    anew = makers.slice(gpus=1).make.call_one(queue, 200, 2)
    taken: list[int] = []
    wanted = {0, 1, 2, 3, 200, 201}
    while not wanted <= set(taken):
        taken += [r.value["i"] for r in queue.get.call_one(1).get(T)]
    assert len(set(taken)) == len(taken)
    for each in (making[0], anew):
        each.get(T)


def _pid(mesh: Mesh) -> int:
    return next(rank.pid for rank in mesh.status().ranks if rank.rank == 1)


def test_what_is_too_old_is_dropped(trainer: Mesh) -> None:
    queue = trainer.spawn("fresh", RolloutQueue, 8, max_lag=1)
    for version in range(5):
        queue.put.call_one(f"r{version}", version).get(T)
    assert [r.value for r in queue.get.call_one(2, 4).get(T)] == ["r3", "r4"]
    assert (state(queue).num_stale, state(queue).num_held, state(queue).num_taken) == (3, 0, 2)


def test_a_closed_queue_tells_all_who_wait(trainer: Mesh) -> None:
    queue = trainer.spawn("closing", RolloutQueue, 1)
    waiting = queue.get.call_one()
    wait_until(lambda: state(queue).num_waiting == 1, "a consumer waits")
    queue.close.call_one().get(T)
    with pytest.raises(ActorError, match="QueueClosed: get: the queue is closed, and empty"):
        waiting.get(T)
    with pytest.raises(ActorError, match="QueueClosed: put: the queue is closed"):
        queue.put.call_one(1).get(T)
    left = trainer.spawn("leftover", RolloutQueue, 4)
    left.put.call_one("last").get(T)
    left.close.call_one().get(T)
    assert [r.value for r in left.get.call_one(3).get(T)] == ["last"]


def test_a_buffer_samples_and_holds_producers_back(trainer: Mesh) -> None:
    buffer = trainer.spawn("replay", ReplayBuffer, 4, min_size=2, samples_per_add=1.0, seed=0)
    sampling = buffer.sample.call_one(2)
    wait_until(lambda: state(buffer).num_waiting == 1, "a consumer waits")
    adding = [buffer.add.call_one(i) for i in range(7)]
    assert len({r.value for r in sampling.get(T)}) == 2
    wait_until(lambda: state(buffer).num_held_back == 3, "three adds are held back")
    assert state(buffer).num_put == 4
    buffer.sample.call_one(4).get(T)
    for each in adding:
        each.get(T)
    assert state(buffer).num_held == 4
    assert {r.value for r in buffer.sample.call_one(4).get(T)} == {3, 4, 5, 6}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: m.spawn("a", RolloutQueue, 0), "capacity is a whole number of at least 1, not 0"),
        (lambda m: m.spawn("b", RolloutQueue, 2, max_lag=-1), "max_lag is a whole number"),
        (lambda m: m.spawn("c", ReplayBuffer, 2, min_size=3), "min_size is 3, above the capacity of 2"),
        (lambda m: m.spawn("d", ReplayBuffer, 2, samples_per_add=0), "samples_per_add must be above 0"),
    ],
)
def test_what_cant_be_is_said(trainer: Mesh, make: Any, message: str) -> None:
    with pytest.raises(DeviceMeshError, match=message):
        make(trainer).state.call_one().get(T)


def test_more_than_it_holds_is_refused(trainer: Mesh) -> None:
    queue = trainer.spawn("small", RolloutQueue, 2)
    with pytest.raises(ActorError, match="3 rollouts were asked for, and the queue holds at most 2"):
        queue.get.call_one(3).get(T)
