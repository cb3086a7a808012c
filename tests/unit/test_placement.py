"""Where the members of a mesh are: slices, layouts, other sizes; what travels."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from monarch_nb._shape import Extent, Shape, decode_extent
from monarch_nb._wire.address import proc_id
from monarch_nb.actor.placement import Placement

PROCS = tuple(proc_id(host, local) for host in (0, 3) for local in (1, 2))
WHOLE = Placement(PROCS, Shape.full(Extent(["hosts", "gpus"], [2, 2])), "dev", (0, 3))


def test_a_slice_has_its_own_processes_and_context() -> None:
    part = WHOLE.with_shape(WHOLE.shape.slice(gpus=1))
    assert part.procs == (PROCS[1], PROCS[3])
    assert dict(decode_extent(part.context)) == {"hosts": 2}
    assert (part.all_procs, part.group, part.hosts) == (PROCS, "dev", (0, 3))


def test_a_slice_of_a_slice_is_of_the_same_spawn() -> None:
    part = WHOLE.with_shape(WHOLE.shape.slice(hosts=1))
    last = part.with_shape(part.shape.slice(gpus=1))
    assert last.procs == (PROCS[3],)
    assert last.shape.ranks == (3,)


def test_positions_count_within_the_slice() -> None:
    part = WHOLE.with_shape(WHOLE.shape.slice(hosts=1))
    one = part.at([1])
    assert one.procs == (PROCS[3],)
    assert one.shape == Shape(Extent(["ranks"], [1]), (3,))
    assert part.procs_at([1, 0]) == [PROCS[3], PROCS[2]]


def test_whole_is_what_has_every_process_in_whatever_layout() -> None:
    assert WHOLE.is_whole
    assert WHOLE.with_shape(WHOLE.shape.flatten("ranks")).is_whole
    assert not WHOLE.with_shape(WHOLE.shape.slice(gpus=0)).is_whole


def test_hosts_are_named_once() -> None:
    assert WHOLE.host_indices == (0, 3)
    assert WHOLE.with_shape(WHOLE.shape.slice(hosts=1)).host_indices == (3,)
    assert WHOLE.positions_by_host() == {0: [0, 1], 3: [2, 3]}


def test_hosts_have_a_placement_of_host_processes() -> None:
    hosts = Placement.of_hosts([0, 3], Shape.full(Extent(["hosts"], [2])))
    assert hosts.procs == (proc_id(0, 0), proc_id(3, 0))
    assert hosts.with_shape(hosts.shape.slice(hosts=slice(1, 2))).host_indices == (3,)


def test_a_process_is_found_at_its_point() -> None:
    part = WHOLE.with_shape(WHOLE.shape.slice(hosts=1))
    assert dict(part.point_of(PROCS[3])) == {"gpus": 1}
    with pytest.raises(ValueError):
        part.point_of(PROCS[0])
    assert part.ranks_among([PROCS[0], PROCS[3]]) == [3]


def test_receivers_are_numbered_by_position() -> None:
    part = WHOLE.with_shape(WHOLE.shape.slice(hosts=1))
    assert part.receivers == [(PROCS[2], 0), (PROCS[3], 1)]


def test_other_sizes_are_another_placement() -> None:
    smaller = replace(WHOLE, all_procs=PROCS[:2], shape=Shape.full(Extent(["hosts", "gpus"], [1, 2])))
    assert smaller.procs == PROCS[:2]
    assert dict(decode_extent(smaller.context)) == {"hosts": 1, "gpus": 2}
    assert WHOLE.procs == PROCS


def test_it_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        WHOLE.group = "other"  # type: ignore[misc]


def test_it_survives_pickling() -> None:
    part = WHOLE.with_shape(WHOLE.shape.slice(gpus=slice(1, 2)))
    found = pickle.loads(pickle.dumps(part))
    assert found == part
    assert (found.procs, found.context) == (part.procs, part.context)
