"""Buffers of messages between machines lie in memory of host processes until their receivers drop them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from own_meshes import one_or_two_hosts
from processes import mesh_processes
from waiting import wait_until

from monarch_nb.actor import Actor, ActorMesh, endpoint

NUM_BYTES = 3 << 20  # beside the message, and too small for the data plane
NUM_CALLS = 20
MAX_KEPT = 8
"""Segments that a process may keep for the next messages."""


class Exchange(Actor):
    @endpoint
    def give(self) -> numpy.ndarray:
        return numpy.ones(NUM_BYTES, numpy.uint8)

    @endpoint
    def take(self, values: numpy.ndarray) -> int:
        return int(values[-1])


@pytest.fixture(scope="module")
def exchanges() -> Iterator[ActorMesh[Exchange]]:
    with one_or_two_hosts("two_hosts") as hosts:
        yield hosts.spawn_procs(per_host={"ranks": 1}).flatten("all").spawn("exchange", Exchange)


def segments() -> int:
    """Return the largest number of shared segments that one host process of these tests has open."""
    return max(len(_segments_of(pid)) for pid, name in mesh_processes().items() if name == "mnb-host")


def _segments_of(pid: int) -> list[str]:
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(each))
        except FileNotFoundError:
            continue  # closed meanwhile
    return [name for name in found if "memfd:" in name]


def test_results_of_another_machine_are_given_back(exchanges: ActorMesh[Exchange]) -> None:
    before = segments()
    for _ in range(NUM_CALLS):
        for values in exchanges.give.call().get(60).values():
            assert values[-1] == 1
        del values
    wait_until(lambda: segments() <= before + MAX_KEPT, "segments are given back")


def test_arguments_for_another_machine_are_given_back(exchanges: ActorMesh[Exchange]) -> None:
    before = segments()
    for number in range(NUM_CALLS):
        values = numpy.full(NUM_BYTES, number, numpy.uint8)
        assert set(exchanges.take.call(values).get(60).values()) == {number}
    wait_until(lambda: segments() <= before + MAX_KEPT, "segments are given back")


def test_a_result_that_is_kept_stays_what_it_is(exchanges: ActorMesh[Exchange]) -> None:
    kept = exchanges.slice(all=1).give.call_one().get(60)
    for _ in range(NUM_CALLS):
        exchanges.take.call(numpy.zeros(NUM_BYTES, numpy.uint8)).get(60)
    assert (kept == 1).all()
