"""Why nothing moves: real hangs, one for each diagnosis, on one host and on two. The mesh survives, and an
interrupt frees it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hanging import GROUP, Waiters, free, until
from own_meshes import own_mesh

from monarch_nb._why import automatic
from monarch_nb._why.diagnoses import Situation, diagnose
from monarch_nb._why.facts import Activity, Operation, RankFacts
from monarch_nb.mesh import Mesh
from monarch_nb.status import MeshStatus

CELL = 17


@pytest.fixture(scope="module", params=[0, 2], ids=["one_host", "two_hosts"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    with own_mesh(
        f"why{request.param}", {"gpus": 4 if not request.param else 2}, num_hosts=request.param
    ) as found:
        found.run("import os, time, ctypes, threading, queue, torch, torch.distributed as dist")
        yield found


@pytest.fixture
def group(mesh: Mesh, tmp_path: Path) -> None:
    """A process group of this test's own: three operations have been entered."""
    mesh.run(GROUP.format(store=tmp_path / "store"))


@pytest.mark.usefixtures("group")
def test_a_missing_rank(mesh: Mesh) -> None:
    run = mesh.submit(
        "t = torch.ones(2, 3)\nif rank != 3: dist.all_reduce(t)\nelse:\n    time.sleep(600)", number=CELL
    )
    report, diagnosis = until(mesh, "missing rank")
    assert diagnosis.ranks == (3,)
    assert diagnosis.text.startswith("ranks 0-2 wait in all_reduce #4 of the default group")
    assert diagnosis.text.endswith("rank 3 never entered it: it is in cell [17] line 4, time.sleep()")
    rows = {row.rank: row for row in report.rows}
    assert (rows[0].tensor, rows[0].state, rows[0].line) == (
        "float32[2, 3]",
        "busy",
        "cell [17] line 2, all_reduce",
    )
    assert rows[0].operation == "all_reduce #4 of the default group"
    assert rows[3].operation == "sleep"
    assert "0-2    busy   cell [17] line 2, all_reduce" in report.text()
    assert "<td>float32[2, 3]</td>" in report._repr_html_()
    free(mesh, run)


@pytest.mark.usefixtures("group")
def test_a_missing_rank_in_a_dataloader(mesh: Mesh) -> None:
    source = (
        "class Slow(torch.utils.data.Dataset):\n    def __len__(self): return 4\n    def "
        "__getitem__(self, i): return never.get()\nnever = queue.Queue()\nif rank == 2:\n    "
        "next(iter(torch.utils.data.DataLoader(Slow())))\nelse:\n    work = "
        "dist.barrier(async_op=True)\n    work.wait()"
    )
    run = mesh.submit(source, number=CELL)
    _, diagnosis = until(mesh, "missing rank")
    assert diagnosis.text.startswith("ranks 0-1,3 wait in ")
    assert diagnosis.text.endswith(
        "rank 2 never entered it: it is in cell [17] line 3 in __getitem__, Queue.get"
    )
    assert "waits for a queue" in until(mesh, "blocked")[1].text
    free(mesh, run)


@pytest.mark.usefixtures("group")
def test_a_missing_rank_in_a_backward(mesh: Mesh) -> None:
    source = (
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))\nloss = "
        "model(torch.ones(2, 3)).sum()\nif rank != 1: loss.backward()\nelse: time.sleep(600)"
    )
    run = mesh.submit(source, number=CELL)
    _, diagnosis = until(mesh, "missing rank", lambda v: "backward of DDP" in v.text)
    assert diagnosis.ranks == (1,) and "ranks 0,2-3 wait in backward of DDP" in diagnosis.text
    free(mesh, run)
    mesh.run("del model, loss")


@pytest.mark.usefixtures("group")
def test_a_missing_sender(mesh: Mesh) -> None:
    run = mesh.submit(
        "if rank == 1: dist.recv(torch.ones(1), src=0)\nelif rank == 0: time.sleep(600)", number=CELL
    )
    _, diagnosis = until(mesh, "missing rank")
    assert diagnosis.ranks == (0,) and diagnosis.text.startswith("rank 1 waits in recv from rank 0")
    assert diagnosis.text.endswith("rank 0 is in cell [17] line 2, time.sleep()")
    free(mesh, run)


@pytest.mark.usefixtures("group")
def test_operations_in_another_order(mesh: Mesh) -> None:
    run = mesh.submit(
        "if rank != 2:\n    dist.all_reduce(torch.ones(1))\nelse:\n    dist.barrier()", number=CELL
    )
    _, diagnosis = until(mesh, "order mismatch")
    assert diagnosis.ranks == (2,)
    assert diagnosis.text.startswith(
        "ranks 0-1,3 are in all_reduce #4 and rank 2 is in barrier #4 of the default group"
    )
    free(mesh, run)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("tensor", "odd"),
    [
        ("torch.ones(8 if rank else 4)", "float32[4]"),
        ("torch.ones(4, dtype=torch.float32 if rank else torch.int32)", "int32[4]"),
    ],
    ids=["shape", "dtype"],
)
def test_tensors_that_differ(mesh: Mesh, tensor: str, odd: str) -> None:
    """Gloo ends a process that is sent more than it has room for; here nobody is, and rank 3 is missing,
    too.
    """
    run = mesh.submit(f"if rank != 3: dist.all_reduce({tensor})\nelse: time.sleep(600)", number=CELL)
    _, diagnosis = until(mesh, "shape mismatch")
    assert diagnosis.ranks == (0,)
    assert f"rank 0 has {odd}" in diagnosis.text and "ranks 1-2 have float32[" in diagnosis.text
    assert until(mesh, "missing rank")[1].ranks == (3,)
    free(mesh, run)


@pytest.mark.usefixtures("group")
def test_a_slow_rank(mesh: Mesh) -> None:
    run = mesh.submit("if rank != 0: dist.barrier()\nelse:\n    while True: pass", number=CELL)
    _, diagnosis = until(mesh, "slow rank")
    assert diagnosis.ranks == (0,)
    assert (
        "ranks 1-3 wait in barrier #4" in diagnosis.text
        and "rank 0 is slow, but makes progress" in diagnosis.text
    )
    free(mesh, run)


def test_a_dead_peer(mesh: Mesh, tmp_path: Path, unhandled: list[Any]) -> None:
    mesh.run("if dist.is_initialized(): dist.destroy_process_group()")
    os.kill(mesh.status().ranks[3].pid, signal.SIGKILL)
    wait_until_lost(mesh, 3)
    source = f"dist.init_process_group('gloo', init_method='file://{tmp_path}/dead', rank=rank, world_size=4)"
    run = mesh.submit(source, [0, 1, 2], number=CELL)
    report, diagnosis = until(mesh, "dead peer")
    assert diagnosis.ranks == (3,)
    assert diagnosis.text.startswith("ranks 0-2 wait in init_process_group")
    assert "rank 3 belongs to it and is lost (" in diagnosis.text and "SIGKILL" in diagnosis.text
    assert diagnosis.next == "%mesh interrupt, then %mesh heal"
    assert report.rows[3].state == "lost"
    mesh.interrupt()
    assert set(run.wait(60).unfinished) == {
        0,
        1,
        2,
    }  # torch waits for the store in C: only a new process is free of that
    mesh.restart("0-2")
    mesh.heal()
    mesh.run("import os, time, ctypes, threading, queue, torch, torch.distributed as dist")


def wait_until_lost(mesh: Mesh, rank: int) -> None:
    deadline = time.monotonic() + 60
    while mesh.status().ranks[rank].state != "lost":
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["Waiter", "AsyncWaiter"])
def test_actors_that_wait_for_each_other(mesh: Mesh, kind: str) -> None:
    actors = Waiters(mesh, kind)
    pending = actors.close_the_circle()
    report, diagnosis = until(mesh, "deadlock")
    assert diagnosis.ranks == (0, 1)
    assert diagnosis.text.startswith(
        "trainer.step on rank 0 waits for trainer.back on rank 1, and trainer.back on rank 1 waits "
        "for trainer.pong on rank 0: each waits for the other (in "
    )
    assert any(row.operation == "trainer.back on rank 1" for row in report.rows)
    actors.free(pending)
    assert mesh.why().diagnoses[0].kind == "idle"


def test_a_cell_that_waits_for_an_actor(mesh: Mesh) -> None:
    actors = Waiters(mesh, "Waiter")
    pending = actors.actors.slice(**actors.first).wait_for_lock.call_one()
    _, diagnosis = until(mesh, "blocked")
    assert (
        diagnosis.ranks == (0,)
        and "waits for a lock, in " in diagnosis.text
        and "hanging.py, line" in diagnosis.text
    )
    mesh.run(
        "import hanging\nhanging.LOCK.release()", "0"
    )  # no thread but the main one can be interrupted while it waits in C
    actors.free(pending)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
            "rank 1 waits for a lock, in cell [17] line 3, lock.acquire()",
        ),
        (
            "lock = threading.Lock()\nlock.acquire()\nwith lock:\n    pass",
            "rank 1 waits for a lock, in cell [17] line 3, with lock",
        ),
        ("threading.Event().wait()", "rank 1 waits for a lock, in cell [17] line 1, Event.wait"),
        (
            "import sys; r, w = os.pipe()\nos.dup2(r, 0)\nsys.stdin.readline()",
            (
                "rank 1 waits for input, which nobody can type on a rank, in cell [17] line 3, "
                "sys.stdin.readline()"
            ),
        ),
        ("queue.Queue().get()", "rank 1 waits for a queue, in cell [17] line 1, Queue.get"),
        (
            "r, w = os.pipe()\nos.read(r, 1)",
            "rank 1 waits for data from a socket or a file, in cell [17] line 2, os.read()",
        ),
        (
            "import subprocess\nsubprocess.run(['sleep', '600'])",
            "rank 1 waits for another process, in cell [17] line 2, run",
        ),
    ],
    ids=["lock", "with", "event", "input", "queue", "read", "process"],
)
def test_what_a_rank_is_blocked_on(mesh: Mesh, source: str, text: str) -> None:
    run = mesh.submit(source, "1", number=CELL)
    assert until(mesh, "blocked")[1].text == text
    free(mesh, run)
    if "stdin" in source:
        mesh.run(
            "os.close(w); os.close(r); n = os.open(os.devnull, os.O_RDONLY); os.dup2(n, 0); os.close(n)", "1"
        )


@pytest.mark.usefixtures("group")
def test_a_rank_that_holds_the_interpreters_lock(mesh: Mesh) -> None:
    run = mesh.submit("if rank == 2: ctypes.PyDLL(None).sleep(600)\nelse: dist.barrier()", number=CELL)
    _, diagnosis = until(
        mesh, "missing rank", lambda v: "faulthandler" not in v.text and "wait in barrier" in v.text
    )
    assert (
        diagnosis.ranks == (2,)
        and "at In[17], line 1, in <module>: if rank == 2: ctypes.PyDLL(None).sleep(600)" in diagnosis.text
    )
    assert "(found by faulthandler)" in until(mesh, "silent")[1].text
    os.kill(mesh.status().ranks[2].pid, signal.SIGINT)  # ends the sleep
    free(mesh, run)


@pytest.mark.usefixtures("group")
def test_a_rank_at_a_breakpoint(mesh: Mesh) -> None:
    run = mesh.submit("if rank == 2:\n    breakpoint()\nelse: dist.barrier()\ndist.barrier()", number=CELL)
    _, diagnosis = until(mesh, "breakpoint", lambda v: "ranks 0-1,3 wait in barrier" in v.text)
    assert diagnosis.ranks == (2,) and diagnosis.text.startswith(
        "rank 2 has stopped at a breakpoint, in cell [17] line 4; ranks 0-1,3 wait in barrier"
    )
    assert diagnosis.next == "%mesh debug"
    free(mesh, run)


def test_nothing_is_wrong(mesh: Mesh) -> None:
    assert mesh.why().sentence == "nothing runs"
    run = mesh.submit("while True: pass", number=CELL)
    _, diagnosis = until(mesh, "working")
    assert diagnosis.text == "no rank waits for another: ranks 0-3 are in cell [17] line 1, while True: pass"
    assert diagnosis.is_harmless
    free(mesh, run)


# --- the rest is found without a mesh


def situation(*ranks: RankFacts) -> Situation:
    return Situation({r.rank: r for r in ranks}, 100.0)


def in_all_reduce(rank: int, **changes: Any) -> RankFacts:
    operation = Operation("all_reduce", "default", (0, 1, 2), 41, (4,), "float32", 66.0)
    return RankFacts(
        rank,
        "busy",
        activities=(Activity(rank, "cell #1", place="cell [1] line 1", operation=operation, **changes),),
    )


def test_the_longest_wait_counts() -> None:
    odd = RankFacts(
        2, "busy", activities=(Activity(2, "cell #1", place="cell [17] line 4", doing="DataLoader.__next__"),)
    )
    text = diagnose(situation(in_all_reduce(0), in_all_reduce(1), odd))[0].text
    assert text == (
        "ranks 0-1 wait in all_reduce #41 of the default group since 34 s; "
        "rank 2 never entered it: it is in cell [17] line 4, DataLoader.__next__"
    )


def test_a_rank_at_a_breakpoint_is_told_first() -> None:
    stopped = RankFacts(
        2, "debugging", activities=(Activity(2, "cell #1", place="cell [3] line 2", doing="breakpoint()"),)
    )
    first, *others = diagnose(situation(in_all_reduce(0), in_all_reduce(1), stopped))
    assert (first.kind, first.ranks, first.next) == ("breakpoint", (2,), "%mesh debug")
    assert first.text == (
        "rank 2 has stopped at a breakpoint, in cell [3] line 2; ranks 0-1 wait in all_reduce #41 of "
        "the default group"
    )
    assert not [v for v in others if v.kind == "missing rank"]


def test_all_members_in_one_operation_are_no_mismatch() -> None:
    (diagnosis,) = diagnose(situation(*map(in_all_reduce, range(3))))
    assert diagnosis.kind == "waiting" and "all that belong to it" in diagnosis.text


def test_a_diagnosis_is_given_once() -> None:
    status = MeshStatus("m", 1, 0.0, (("gpus", 1),), None, (), hosts=(), ranks=())
    assert status.health == "ok"
    output: list[str] = []

    class View:
        version = 0

        def note(self, text: str) -> None:
            output.append(text)

    class Run:
        done = False

    class NobodyDebugs:
        class _session:  # noqa: N801 - stands for an object
            num_prompts = 0

    found = situation(in_all_reduce(0), in_all_reduce(1), RankFacts(2, "idle"))
    stall_detector = automatic.StallDetector(NobodyDebugs, View())  # type: ignore[arg-type]
    stall_detector.watch(Run())  # type: ignore[arg-type]
    from monarch_nb._why.report import make_report

    for _ in range(3):
        stall_detector._note(make_report(found, diagnose(found)))
    assert len(output) == 1 and output[0].startswith("why: ranks 0-1 wait in all_reduce #41")
    calm = situation(RankFacts(0, "idle"))
    stall_detector._note(make_report(calm, diagnose(calm)))
    assert len(output) == 1
