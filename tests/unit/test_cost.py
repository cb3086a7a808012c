"""The cost of hosts by a clock that a test gives: from the grant on, by how many there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monarch_nb._protocol.programs import Cost
from monarch_nb.job.allocation import Allocation, Plan
from monarch_nb.job.cost import cost_of, counted, given_back, with_earlier
from monarch_nb.job.engines import Look, State
from monarch_nb.job.spec import HostSpec

SPEC = HostSpec("slurm", gpus=8, usd_per_gpu_hour=2.0)
"""A host costs 16 $ an hour."""
ASKED = Allocation("big", "lab", SPEC, id="1", hosts=(1, 2), plan=Plan(), submitted_at=1000.0)


def granted(*nodes: str, starts_at: float | None = None) -> Look:
    return Look(State.GRANTED, nodes=nodes, starts_at=starts_at)


def cost(*requests: Allocation) -> Cost:
    found = cost_of(requests)
    assert found is not None
    return found


def test_nothing_is_paid_in_the_queue() -> None:
    waiting = counted(ASKED, Look(State.QUEUED, starts_at=9000.0), 5000.0)
    assert waiting == ASKED and cost_of([waiting]) is None
    there = counted(waiting, granted("n1", "n2", starts_at=5000.0), 5900.0)
    assert cost(there) == Cost(num_gpus=16, usd=pytest.approx(8.0), usd_per_hour=32.0, counted_at=5900.0)
    # An engine that doesn't say since when: since it was first seen.
    assert cost(counted(waiting, granted("n1", "n2"), 5900.0)).usd == 0.0


def test_hosts_are_paid_each_for_its_time() -> None:
    two = counted(ASKED, granted("n1", "n2"), 3600.0)
    more = replace(ASKED, id="2", hosts=(3,), submitted_at=5400.0)
    two = counted(two, granted("n1", "n2"), 7200.0)
    more = counted(more, granted("n3", starts_at=7200.0), 7200.0)
    both = cost(two, more)
    assert (both.num_gpus, both.usd, both.usd_per_hour) == (24, pytest.approx(32.0), pytest.approx(48.0))

    # One node goes back, then the further request: what they have cost stays.
    one = counted(counted(two, granted("n1"), 9000.0), granted("n1"), 10800.0)
    left = with_earlier(one, [given_back(more, 10800.0)], 10800.0)
    found = cost(left)
    assert (found.num_gpus, found.usd_per_hour) == (8, pytest.approx(16.0))
    assert found.usd == pytest.approx(32.0 + 16.0 + 8.0 + 16.0)
    assert found.usd_until(10800.0 + 1800.0) == pytest.approx(72.0 + 8.0)

    # After the end nothing more is paid; and it's the same on disk.
    over = counted(left, Look(State.ENDED), 10800.0)
    assert cost(counted(over, Look(State.ENDED), 99999.0)).usd == pytest.approx(72.0)
    assert Allocation.from_json(left.to_json()) == left


def test_without_a_price_nothing_is_said() -> None:
    for spec in (replace(SPEC, usd_per_gpu_hour=None), replace(SPEC, gpus=None)):
        assert cost_of([counted(replace(ASKED, spec=spec), granted("n1"), 2000.0)]) is None
