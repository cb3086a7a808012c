"""A rank that dies, or the process that leads the mesh, is an error in the program at its next wait. After a
heal, tensors of which other ranks have all parts are as they were.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from preloads import PRELOAD_TO_TRAIN
from processes import PATIENCE_S, mesh_processes, wait_for_exit
from waiting import wait_until

import monarch_nb
from monarch_nb.actor import current_rank
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import DeviceMeshError, RemoteException, SupervisionError

PRELOAD = PRELOAD_TO_TRAIN
IN_TIME_S = 20.0
"""Far below every time-out that somebody could wait for, and far above what a slow machine needs."""


@pytest.fixture(scope="module")
def own_four() -> Iterator[Mesh]:
    with Mesh(shape=(2, 2), mesh_dim_names=("rows", "columns")) as found:
        yield found


@pytest.fixture
def four(own_four: Mesh) -> Mesh:
    """Four ranks that a test may kill."""
    if not own_four.healthy():
        own_four.heal()
    return own_four


def pids_of(mesh: Mesh) -> list[int]:
    return list(mesh.procs.execute(os.getpid).get(PATIENCE_S).values())


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert wait_for_exit(pid)


def raises_at_once(do: Callable[[], Any], *words: str) -> SupervisionError:
    began = time.monotonic()
    with pytest.raises(SupervisionError) as caught:
        do()
    assert time.monotonic() - began < IN_TIME_S
    text = str(caught.value)
    for word in (*words, "test_deaths.py, line", "lost rank 1", "the process was killed by SIGKILL"):
        assert word in text, text
    assert caught.value.ranks == (1,)
    return caught.value


def meets(folder: str, x: torch.Tensor) -> Any:
    """All ranks begin a collective; rank 1 is stopped before."""
    rank = current_rank().rank
    Path(folder, f"{rank}.{os.getpid()}").touch()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return x.sum().full_tensor()  # type: ignore[attr-defined]


def test_a_rank_dies_before_a_collective(four: Mesh) -> None:
    x = monarch_nb.distribute(torch.arange(8.0), four, [("rows", "columns")])
    kill(pids_of(four)[1])
    raises_at_once(lambda: x.sum().item(), "aten.sum.default has no result", "lambda: x.sum().item()")


def test_a_rank_dies_within_a_collective(four: Mesh, tmp_path: Path) -> None:
    x = monarch_nb.distribute(torch.arange(8.0), four, [("rows", "columns")])
    total = monarch_nb.remote(meets, propagate="inspect")
    pid = pids_of(four)[1]
    stopped = psutil.Process(pid)

    def end_it() -> None:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 4, "all ranks are there")
        wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, "one is stopped")
        os.kill(pid, signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(end_it)
        raises_at_once(lambda: total(str(tmp_path), x), "own.call has no result")
        ended.result()
    monarch_nb.heal_mesh(four)
    assert monarch_nb.distribute(torch.ones(4), four, ["rows"]).sum().item() == 4.0


def test_a_rank_dies_after_a_collective(four: Mesh) -> None:
    x = monarch_nb.distribute(torch.arange(8.0), four, [("rows", "columns")])
    total = x.sum()
    assert total.item() == 28.0
    kill(pids_of(four)[1])
    raises_at_once(total.item, "aten.sum.default has no result")
    monarch_nb.heal_mesh(four)
    with pytest.raises(DeviceMeshError, match=r"lost with rank 1 of its mesh.*SIGKILL"):
        x.sum()


def test_what_other_ranks_have_lives_on(four: Mesh) -> None:
    plain = torch.arange(12.0).reshape(4, 3)
    whole = monarch_nb.distribute(plain, four)
    rows = monarch_nb.distribute(plain, four, ["rows"])
    turned = whole.t()[1:]
    single = monarch_nb.distribute(plain, four, ["rows", "columns"])
    with four.activate():
        own = torch.ones(3)
    whole.mul_(2)
    assert rows.sum().item() == plain.sum()
    kill(pids_of(four)[1])
    raises_at_once(lambda: (whole + 1).sum().item())
    monarch_nb.heal_mesh(four)
    assert torch.equal(whole.full(), 2 * plain) and torch.equal(rows.full(), plain)
    turned.add_(1)  # a view shares its memory with the base on the new rank, too
    plain = 2 * plain
    plain.t()[1:].add_(1)
    for rank in range(4):
        assert torch.equal(monarch_nb.inspect(whole, rank=rank), plain)
    assert torch.equal((whole @ rows.t()).full(), plain @ rows.full().t())
    for lost in (single, own):
        with pytest.raises(DeviceMeshError, match=r"lost with rank 1 of its mesh") as caught:
            lost * 2
        assert "test_deaths.py, line" in str(caught.value)
    assert "lost: this tensor was lost with rank 1" in repr(single)


def test_what_lives_on_can_be_filled_where_a_dimension_has_one_element(four: Mesh) -> None:
    """Its strides there are of no consequence, and aren't those that a gathered tensor has."""
    forms: list[Callable[[Any], Any]] = [
        lambda x: x.unsqueeze(0).transpose(0, 1), lambda x: x.unsqueeze(1),
        lambda x: x.view(3, 4, 1).transpose(1, 2), lambda x: x[::2].unsqueeze(0).transpose(0, 1),
    ]  # fmt: skip
    plain = [form(torch.arange(12).reshape(3, 4)) for form in forms]
    made = [form(monarch_nb.distribute(torch.arange(12).reshape(3, 4), four)) for form in forms]
    assert all(map(torch.equal, [each.full() for each in made], plain))
    kill(pids_of(four)[1])
    raises_at_once(lambda: (made[0] + 1).sum().item())
    monarch_nb.heal_mesh(four)
    for each in (*made, *plain):
        each[0] = 7
    assert all(map(torch.equal, [each.full() for each in made], plain))


def test_strides_of_a_dimension_of_one_element_are_the_same_on_the_new_rank(four: Mesh) -> None:
    """Torch looks at them: it doesn't copy a tensor onto itself that is seen with other strides."""
    plain = torch.arange(4).reshape(2, 2)
    whole = monarch_nb.distribute(plain, four)
    first, other = whole[::2, :1], whole[:1, :1]
    with pytest.raises(RuntimeError, match="single memory location"):
        plain[:1, :1].copy_(plain[::2, :1])
    assert first.tolist() == other.tolist() == [[0]]
    kill(pids_of(four)[1])
    raises_at_once(lambda: (whole + 1).sum().item())
    monarch_nb.heal_mesh(four)
    other.copy_(first)
    with pytest.raises(RemoteException, match=r"on ranks 0-3.*single memory location"):
        other.tolist()


def test_what_lost_commands_would_have_changed_is_lost(four: Mesh) -> None:
    whole = monarch_nb.distribute(torch.zeros(4), four)
    other, by = monarch_nb.distribute(torch.ones(4), four), monarch_nb.distribute(torch.ones(2), four)
    parts = monarch_nb.distribute(torch.ones(4), four, [("rows", "columns")])
    whole[:2].add_(by)  # the same plans are known
    assert whole.sum().item() == 2.0 and parts.sum().item() == 4.0
    kill(pids_of(four)[1])
    with monarch_nb.coalescing():
        monarch_nb.redistribute(parts, [])
        whole[:2].add_(by)  # by a view that's gone at once
    raises_at_once(lambda: parts.sum().item())
    monarch_nb.heal_mesh(four)
    assert other.tolist() == [1.0] * 4
    with pytest.raises(DeviceMeshError, match=r"lost with rank 1"):
        whole.tolist()


def test_the_first_rank_and_two_at_once(four: Mesh) -> None:
    whole = monarch_nb.distribute(torch.arange(4.0), four)
    rows = monarch_nb.distribute(torch.arange(4.0), four, ["rows"])
    model = monarch_nb.module_to_mesh(torch.nn.Linear(4, 2), four)
    wanted = model(torch.ones(4)).full()
    pids = pids_of(four)
    for pid in pids[:2]:
        kill(pid)
    with pytest.raises(SupervisionError, match="lost rank"):
        rows.sum().item()
    monarch_nb.heal_mesh(four)
    assert whole.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert torch.equal(model(torch.ones(4)).full(), wanted)
    with pytest.raises(DeviceMeshError, match="lost with ranks 0-1"):
        rows * 2
    for pid in pids_of(four):
        kill(pid)
    with pytest.raises(SupervisionError, match="lost rank"):
        whole.sum().item()
    monarch_nb.heal_mesh(four)
    with pytest.raises(DeviceMeshError, match="lost with ranks 0-3"):
        whole.sum()
    assert monarch_nb.distribute(torch.ones(4), four, ["rows"]).sum().item() == 4.0


def test_a_failure_before_is_still_told(four: Mesh) -> None:
    good = monarch_nb.distribute(torch.ones(2), four)
    bad = good.index_select(0, torch.tensor([9]))
    with pytest.raises(DeviceMeshError, match=r"index_select.default failed on ranks [01]-3"):
        bad.tolist()
    kill(pids_of(four)[1])
    raises_at_once(lambda: good.sum().item())
    monarch_nb.heal_mesh(four)
    with pytest.raises(DeviceMeshError, match=r"index_select.default failed on ranks [01]-3"):
        (bad + 1).tolist()
    assert good.tolist() == [1.0, 1.0]


LEADERLESS = """
import os, sys, psutil, torch, monarch_nb
from monarch_nb.distributed import Mesh
mesh = Mesh((2,), ("dp",))
x = monarch_nb.distribute(torch.ones(4), mesh, ["dp"])
leader = [p.pid for p in psutil.Process().children(recursive=True) if p.name() == "mnb-host"]
print(leader[0], flush=True)
try:
    while True:
        x = x * 0.5 + 1
        if x.sum().item() and leader:
            print("under way", flush=True)
            leader = []
except monarch_nb.exceptions.MeshError as error:
    print(type(error).__name__, isinstance(error, monarch_nb.exceptions.DeviceMeshError), error, flush=True)
try:
    print(monarch_nb.distribute(torch.ones(4), mesh))
except monarch_nb.exceptions.MeshError as error:
    print("again:", error, flush=True)
"""


def test_the_process_that_leads_the_mesh_dies() -> None:
    before = set(mesh_processes())
    program = subprocess.Popen(
        [sys.executable, "-c", LEADERLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    try:
        leader = int(program.stdout.readline())
        assert program.stdout.readline() == "under way\n"
        os.kill(leader, signal.SIGKILL)
        out, errors = program.communicate(timeout=PATIENCE_S)
    finally:
        program.kill()
    assert program.returncode == 0, errors
    assert out.startswith("MeshEnded True ") and "killed" in out and "again: " in out, out
    for pid in set(mesh_processes()) - before:
        assert wait_for_exit(pid), mesh_processes().get(pid)
