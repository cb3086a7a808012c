"""Random faults during mixed work: each is reported, once and correctly, each heal works, no wrong result
is ever returned.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from faults import wait_for_news

from monarch_nb import start
from monarch_nb._client import session as sessions
from monarch_nb._rank import rendezvous
from monarch_nb.actor import Checkpointed, MeshFailure, attach_to_workers, endpoint
from monarch_nb.actor.handle import placement_of
from monarch_nb.actor.workers import new_key_file
from monarch_nb.exceptions import ActorError, MeshError
from monarch_nb.mesh import Mesh
from monarch_nb.mesh.cell_run import CellError
from monarch_nb.testing.chaos import KINDS, LETHAL, Chaos, Fault, inject, partition

NUM_FAULTS = int(os.environ.get("MONARCH_NB_SOAK_FAULTS", "30"))
"""In `make soak` 200."""
NUM_RANKS = 3
T = 60
SIGNALS = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV, "abort": signal.SIGABRT}


class Ledger(Checkpointed):
    """Adds up what it's told; all ranks hold the same, and saves after each call."""

    checkpoint_every, checkpoint_state = 1, "replicated"

    def __init__(self) -> None:
        import torch

        self.total = torch.zeros(1, dtype=torch.int64)

    def state_dict(self) -> Any:
        return {"total": self.total}

    def load_state_dict(self, state: Any) -> None:
        self.total = state["total"]

    @endpoint
    def add(self, x: int) -> int:
        self.total += x
        return int(self.total)

    @endpoint
    def get(self) -> int:
        return int(self.total)


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    before = sessions.current()
    started = start("chaos", {"gpus": NUM_RANKS})
    started.run(
        "import os, torch, torch.distributed as dist\n"
        "os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR='127.0.0.1')"
    )
    port = started.part([0]).execute(rendezvous.free_address).get(T).item()[1]
    started.set_environment({"MASTER_PORT": str(port), "MASTER_ADDR": "127.0.0.1"}).get(T)
    started.run("dist.init_process_group('gloo')")
    yield started
    started.stop().get(T)
    sessions.use(before)


class Work:
    """Calls, cells and collectives, with what must come out of them."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.ledger: Any = mesh.spawn("ledger", Ledger)
        self.possible = {0}
        """What the ledger may hold: a call that failed may have been counted or not."""

    def call(self, x: int) -> None:
        future = self.ledger.add.call(x)
        try:
            totals = set(future.get(T).values())
        except MeshError:
            self.possible |= {p + x for p in self.possible}
            raise
        assert len(totals) == 1 and totals <= {p + x for p in self.possible}
        self.possible = totals

    def cell(self, x: int) -> None:
        result = self.mesh.run(f"value = {x} * (rank + 1)\nvalue")
        assert [result.bundles[r]["text/plain"] for r in range(NUM_RANKS)] == [
            str(x * (r + 1)) for r in range(NUM_RANKS)
        ]

    def reduce(self, x: int) -> None:
        source = (
            f"import torch, torch.distributed as dist\nt = torch.tensor([{x} + rank])\n"
            "dist.all_reduce(t)\nint(t)"
        )
        result = self.mesh.run(source)
        expected = str(sum(x + r for r in range(NUM_RANKS)))
        assert {bundle["text/plain"] for bundle in result.bundles.values()} == {expected}

    def check_ledger(self) -> None:
        totals = set(self.ledger.get.call().get(T).values())
        assert len(totals) == 1 and totals <= self.possible
        self.possible = totals


def check_report(fault: Fault, failure: Any) -> None:
    """A death is told with its rank, its pid and how it came."""
    end = failure.end
    assert end is not None and end["pid"] == fault.pid and failure.ranks == (fault.rank,)
    assert end["signal"] == SIGNALS.get(fault.kind) and end["exit_code"] == (
        7 if fault.kind == "exit" else None
    )


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_faults_one_after_the_other(mesh: Mesh, unhandled: list[MeshFailure]) -> None:
    work, chaos = Work(mesh), Chaos(mesh, seed=2026)
    for number in range(NUM_FAULTS):
        do = chaos.random.choice((work.call, work.cell, work.reduce))
        reported: list[Any] = []
        num_hanging = 0
        unhandled.clear()
        with chaos.strike() as fault:
            if fault.kind == "stop":  # it would wait for the end of the block
                work_later = do
            else:
                work_later = None
                try:
                    do(number)
                except MeshError as error:
                    reported = [f for f in getattr(error, "failures", ()) if f.end is not None]
                    # gloo may wait for good to send to a peer that has died: such a rank is given up, and
                    # started anew by the heal
                    num_hanging = error.num_unfinished if isinstance(error, CellError) else 0
        if work_later is not None:
            work_later(number)
        if fault.kind == "memory":
            assert fault.outcome is not None
            with pytest.raises(ActorError, match="MemoryError"):
                fault.outcome.get(T)
        if not fault.is_lethal:
            assert not reported and not unhandled, f"fault {number}: {fault} was told as a death"
            continue
        wait_for_news(mesh, fault.pid)
        of_exit = []
        if fault.outcome is not None:
            with pytest.raises(MeshError) as caught:
                fault.outcome.get(T)
            of_exit = [f for f in caught.value.failures if f.end is not None]  # type: ignore[attr-defined]
            for failure in of_exit:
                assert failure.end is not None and failure.end["pid"] == fault.pid
        by_hook = [f for failure in unhandled for f in failure.failures]
        assert len(by_hook) <= 1 and (reported or of_exit or by_hook), (
            f"fault {number}: {fault} told {len(reported)} times, by the hook {len(by_hook)}; known: "
            f"{mesh._transport.ends.get(placement_of(mesh).procs[fault.rank])}"
        )
        # Told by both, if it was dead before it was used: at once, and at the next use.
        for failure in (*reported, *by_hook):
            check_report(fault, failure)
        report = mesh.heal()
        assert fault.rank in report.ranks and len(report.ranks) <= 1 + num_hanging
        work.check_ledger()
    assert {fault.kind for fault in chaos.faults} == set(KINDS)
    assert len(chaos.faults) == NUM_FAULTS
    work.cell(1)
    work.reduce(1)
    assert len(mesh.status().ranks) == NUM_RANKS and mesh.healthy()


def test_the_same_seed_gives_the_same_faults(mesh: Mesh) -> None:
    first, second = Chaos(mesh, seed=5), Chaos(mesh, seed=5)
    drawn = [first.draw() for _ in range(50)]
    assert drawn == [second.draw() for _ in range(50)]
    assert {rank for _, rank in drawn} == set(range(NUM_RANKS)) and {kind for kind, _ in drawn} == set(KINDS)
    with pytest.raises(ValueError, match=f"a fault is one of {', '.join(KINDS)}, not 'flood'"):
        inject(mesh, "flood", 0)
    with pytest.raises(ValueError, match="rank 9 is out of range"):
        inject(mesh, LETHAL[0], 9)


@pytest.fixture
def far_network() -> Iterator[str]:
    """Two network namespaces, each with a cable to this one: 10.78.1.2 and 10.78.2.2."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command `ip` (package iproute2) to make network namespaces")
    try:
        for i in (1, 2):
            run_ip(f"netns add mnbtest{i}")
            run_ip(f"link add mnbtest{i} type veth peer name eth0 netns mnbtest{i}")
            run_ip(f"addr add 10.78.{i}.1/24 dev mnbtest{i}")
            run_ip(f"link set mnbtest{i} up")
            run_ip(f"-n mnbtest{i} addr add 10.78.{i}.2/24 dev eth0")
            run_ip(f"-n mnbtest{i} link set eth0 up")
    except subprocess.CalledProcessError:
        remove_networks()
        pytest.skip("needs the right to make network namespaces")
    yield "10.78"
    remove_networks()


def run_ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


def remove_networks() -> None:
    for i in (1, 2):
        subprocess.run(["ip", "link", "del", f"mnbtest{i}"], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", f"mnbtest{i}"], check=False, capture_output=True)


def test_a_host_that_is_cut_off_is_replaced_by_a_spare(
    far_network: str, unhandled: list[MeshFailure]
) -> None:
    key = new_key_file()
    addresses = [f"tcp://{far_network}.{i}.2:7000" for i in (1, 2)]
    code = (
        "import sys; from monarch_nb.actor import run_worker_loop_forever; "
        "run_worker_loop_forever(address=sys.argv[1], ca=sys.argv[2])"
    )
    workers = [
        subprocess.Popen(["ip", "netns", "exec", f"mnbtest{i}", sys.executable, "-c", code, address, key])
        for i, address in zip((1, 2), addresses, strict=True)
    ]
    try:
        hosts = attach_to_workers(ca=key, workers=addresses)
        hosts.initialized.get(T)
        procs = hosts.slice(hosts=0).spawn_procs({"gpus": 2})
        ledger: Any = procs.spawn("ledger", Ledger)
        ledger.add.call(5).get(T)
        pending = procs.execute(signal.pause)
        with partition("mnbtest1"), pytest.raises(MeshError, match="has not been heard of for 4 s"):
            pending.get(T)
        # The one that was cut off comes back, and must not be taken for what it was.
        report = procs.heal()
        assert report.ranks == (0, 1)
        assert set(ledger.add.call(1).get(T).values()) in ({6}, {1})
        procs.stop().get(T)
        hosts.shutdown().get(T)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(T)
