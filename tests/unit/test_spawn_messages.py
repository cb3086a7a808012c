"""The messages by which hosts start ranks don't grow with the mesh: each host is sent its own ranks, and the
others in few bytes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._host.controller.ranks import RankService
from monarch_nb._host.controller.registry import Group, Registry
from monarch_nb._protocol.base import Request, decode, encode
from monarch_nb._protocol.rank_spec import GroupSpec
from monarch_nb._protocol.ranks import StartRanks
from monarch_nb._protocol.runs import Run, numbers_of, runs_of
from monarch_nb._protocol.states import StartMethod
from monarch_nb._shape import Extent, encode_extent
from monarch_nb._wire import address

PER_HOST = 8


@given(st.lists(st.integers(0, 1 << 62) | st.integers(0, 9), max_size=40))
def test_any_numbers_come_back_in_their_order(numbers: list[int]) -> None:
    assert numbers_of(runs_of(numbers)) == tuple(numbers)


@given(st.lists(st.integers(0, 1 << 31), min_size=1, max_size=5), st.integers(1, 9))
def test_ranks_of_some_hosts_come_back(hosts: list[int], per_host: int) -> None:
    procs = [address.proc_id(host, 1 + i) for host in hosts for i in range(per_host)]
    assert numbers_of(runs_of(procs)) == tuple(procs)


def test_ranks_that_lie_alike_on_all_hosts_are_one_run() -> None:
    procs = [address.proc_id(host, 1 + i) for host in range(128) for i in range(PER_HOST)]
    assert runs_of(procs) == (Run(procs[0], PER_HOST, 1 << 32, 128),)


class Parts:
    """Stands for a controller whose hosts keep what they're asked."""

    def __init__(self, num_hosts: int) -> None:
        self.asked: dict[int, bytes] = {}
        self.debug = SimpleNamespace(settings={"skip": False, "on_error": False})
        self.mesh_address = ("m", "dev", "boot", "lab", "/run/user/1000/mnb", 4711, 1)
        self.mesh_name = SimpleNamespace(is_claimed=True)
        self.registry = Registry()
        for _ in range(num_hosts):
            self.registry.new_host("")
        self.hosts = SimpleNamespace(of=self.by_host, get=self.registry.hosts.get, ask=self.ask)

    def by_host(self, procs: list[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for proc in procs:
            found.setdefault(address.host_of(proc), []).append(proc)
        return found

    def ask(self, index: int, request: Request[None]) -> None:
        self.asked[index] = encode(request)


def asked_of(num_hosts: int) -> dict[int, bytes]:
    """Return the message that each host is sent when ranks start on all of them."""
    parts: Any = Parts(num_hosts)
    procs = [
        entry.proc
        for host in range(num_hosts)
        for entry in parts.registry.new_procs(
            host, "workers", list(range(host * PER_HOST, (host + 1) * PER_HOST))
        )
    ]
    extent = Extent(["hosts", "gpus"], [num_hosts, PER_HOST])
    spec = GroupSpec("workers", encode_extent(extent))
    RankService(parts).start(Group("workers", extent, procs, spec, StartMethod.FORK), procs)
    first = decode(StartRanks, parts.asked[0])
    assert numbers_of(first.place.procs) == tuple(procs)
    assert numbers_of(first.place.hosts) == tuple(range(num_hosts))
    return dict(parts.asked)


@pytest.mark.parametrize("num_hosts", [16, 128])
def test_a_host_is_sent_as_much_whatever_the_number_of_others(num_hosts: int) -> None:
    for_two, for_many = asked_of(2), asked_of(num_hosts)
    assert len(for_many) == num_hosts
    numbers = 8 * (PER_HOST + 4)  # larger numbers take more bytes: some of each rank, some of the runs
    assert max(map(len, for_many.values())) <= max(map(len, for_two.values())) + numbers
