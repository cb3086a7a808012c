"""What a mesh says of itself while things run on it, on one host and on two."""

from __future__ import annotations

import json
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from own_meshes import own_mesh
from sample_actors import AsyncHolder, Holder
from waiting import wait_until

from monarch_nb import mesh as meshes
from monarch_nb._protocol.names import GetMesh
from monarch_nb.actor.handle import placement_of
from monarch_nb.mesh import CellInterrupted, Mesh
from monarch_nb.status import MeshStatus, RankStatus, StatusChange, apply
from monarch_nb.status.messages import Snapshot

PATIENCE_S = 60.0


@pytest.fixture(scope="module", params=[0, 2], ids=["one_host", "two_hosts"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    with own_mesh(
        f"live{request.param}", {"gpus": 4 if not request.param else 2}, num_hosts=request.param
    ) as found:
        yield found


class Watcher:
    """Keeps the state up to date by changes, as every display does."""

    def __init__(self, mesh: Mesh) -> None:
        self._changes: queue.SimpleQueue[StatusChange] = queue.SimpleQueue()
        self._status: MeshStatus | None = None
        self._feed = mesh.watch_status(self._changes.put)

    def until(self, wanted: Callable[[MeshStatus], bool]) -> MeshStatus:
        """Return the first state that is wanted."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            if self._status is not None and wanted(self._status):
                return self._status
            change = self._changes.get(timeout=max(0.1, deadline - time.monotonic()))
            self._status = apply(self._status, change)
            self._feed.taken()

    def close(self) -> None:
        self._feed.close()


@pytest.fixture
def watcher(mesh: Mesh) -> Iterator[Watcher]:
    found = Watcher(mesh)
    try:
        yield found
    finally:
        found.close()
        if mesh.status().num_cells:  # the test has failed: the next one shall find idle ranks
            mesh.interrupt()


def all_are(state: str) -> Callable[[MeshStatus], bool]:
    return lambda status: all(r.state == state for r in status.ranks)


def test_a_cell_is_seen_with_its_line_and_its_end(mesh: Mesh, watcher: Watcher) -> None:
    watcher.until(all_are("idle"))
    run = mesh.submit("import time\nprint('hello')\ntime.sleep(600)", number=5)
    status = watcher.until(
        lambda s: all(r.line == "In [5], line 3: time.sleep(600)" and r.last_line for r in s.ranks)
    )
    for rank in status.ranks:
        assert (rank.state, rank.cell, rank.doing) == ("busy", run.n, f"cell #{run.n}")
        assert rank.last_line == "hello"
        assert abs(rank.since - time.time()) < PATIENCE_S
    assert status.num_cells == 1
    mesh.interrupt()
    run.wait()
    status = watcher.until(all_are("idle"))
    assert {(r.doing, r.line, r.cell) for r in status.ranks} == {("", "", None)}


def test_an_actors_call_is_seen_and_what_waits_behind_it(
    mesh: Mesh, watcher: Watcher, tmp_path: Path
) -> None:
    holder = mesh.spawn("holder", Holder)
    file = tmp_path / "go"
    pending = [holder.hold.call(str(file)) for _ in range(3)]
    status = watcher.until(lambda s: all(r.line and r.num_queued == 2 for r in s.ranks))
    for rank in status.ranks:
        assert (rank.state, rank.doing, rank.cell) == ("busy", "Holder.hold", None)
        assert "sample_actors.py, in hold, line" in rank.line
    assert "busy with Holder.hold" in status.text()
    file.touch()
    for each in pending:
        each.get(PATIENCE_S)
    watcher.until(all_are("idle"))
    holder.stop().get(PATIENCE_S)


def test_an_interrupt_of_a_cell_that_waits_spares_the_function_before_it(
    mesh: Mesh, watcher: Watcher, tmp_path: Path
) -> None:
    gate = str(tmp_path / "go")

    def hold() -> str:
        while not os.path.exists(gate):
            time.sleep(0.01)
        return "held"

    held = mesh.execute(hold)
    watcher.until(lambda s: all(r.doing == "function" for r in s.ranks))
    run = mesh.submit("print('never')")
    watcher.until(lambda s: all(len(r.cells_waiting) == 1 for r in s.ranks))
    run.interrupt()
    with pytest.raises(CellInterrupted, match="were interrupted"):
        run.get(PATIENCE_S)
    (tmp_path / "go").touch()
    assert set(held.get(PATIENCE_S).values()) == {"held"}


def test_a_cell_that_waits_behind_a_function_is_said_to_wait(
    mesh: Mesh, watcher: Watcher, tmp_path: Path
) -> None:
    gate = str(tmp_path / "go")

    def hold() -> None:
        while not os.path.exists(gate):
            time.sleep(0.01)

    held = mesh.execute(hold)
    watcher.until(lambda s: all(r.doing == "function" for r in s.ranks))
    first, second = mesh.submit("import time\ntime.sleep(600)"), mesh.submit("1")
    status = watcher.until(lambda s: all(len(r.cells_waiting) == 2 for r in s.ranks))
    ((one, two),) = {r.cells_waiting for r in status.ranks}
    assert {(r.state, r.doing, r.cell) for r in status.ranks} == {("busy", "function", None)}
    text = mesh.status().text()
    assert "busy with function" in text and "with cell" not in text
    assert f"; cells #{one}, #{two} wait, for" in text
    assert {r.num_queued for r in mesh.status().ranks} == {2}
    (tmp_path / "go").touch()
    held.get(PATIENCE_S)
    status = watcher.until(lambda s: all(r.cell == one for r in s.ranks))
    assert {(r.doing, r.cells_waiting) for r in status.ranks} == {(f"cell #{one}", (two,))}
    mesh.interrupt()
    assert (first.wait().n, second.wait().n) == (one, two)
    watcher.until(all_are("idle"))


def test_a_call_that_awaits_is_seen_where_it_awaits(mesh: Mesh, watcher: Watcher) -> None:
    holder = mesh.spawn("awaiting", AsyncHolder)
    holder.hold.call()
    status = watcher.until(lambda s: all(r.line for r in s.ranks))
    assert {(r.doing, r.line.partition(", in ")[2]) for r in status.ranks} == {
        ("AsyncHolder.hold", "_wait, line " + status.ranks[0].line.rpartition(", line ")[2])
    }
    assert status.ranks[0].line.endswith(": await asyncio.sleep(600)")
    for rank in range(len(mesh)):
        mesh.restart([rank])


def test_a_collective_that_waits_is_named(mesh: Mesh, watcher: Watcher, tmp_path: Path) -> None:
    mesh.run(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo', "
        f"init_method='file://{tmp_path}/store', rank=rank, world_size=world_size)\n"
        "dist.all_reduce(torch.ones(1))"
    )
    run = mesh.submit(
        "if rank != 3: dist.all_reduce(torch.ones(2, 3))\nelse:\n    import time\n    time.sleep(600)"
    )
    status = watcher.until(
        lambda s: all(r.collective for r in s.ranks if r.rank != 3) and bool(s.ranks[3].line)
    )
    waiting = status.ranks[0].collective
    assert waiting is not None
    assert (waiting.name, waiting.shape, waiting.dtype) == ("all_reduce", (2, 3), "float32")
    assert len({r.collective.sequence for r in status.ranks if r.collective}) == 1
    assert status.ranks[3].collective is None and "time.sleep(600)" in status.ranks[3].line
    assert "in all_reduce" in status.text()
    mesh.interrupt()
    run.wait()


def test_memory_and_cpu_are_measured(mesh: Mesh, watcher: Watcher) -> None:
    mesh.run("import torch\nkept = torch.ones(64 << 20, dtype=torch.uint8)", "1")

    def has_grown() -> bool:  # what was read a moment ago isn't read again
        sizes = [r.memory_bytes for r in mesh.status().ranks]
        assert all(size is not None for size in sizes)
        return (sizes[1] or 0) - (sizes[0] or 0) > 50 << 20

    wait_until(has_grown, "rank 1 has taken memory")
    run = mesh.submit("while True: pass", "0")
    watcher.until(lambda s: (s.ranks[0].cpu_percent or 0) > 20 and s.hosts[0].cpu_percent is not None)
    mesh.interrupt()
    run.wait()
    mesh.run("del kept", "1")
    host = mesh.status().hosts[0]
    assert (
        host.memory_used_bytes
        and host.memory_total_bytes
        and host.memory_used_bytes < host.memory_total_bytes
    )


def test_a_dead_rank_says_why_and_lives_again(mesh: Mesh, watcher: Watcher, unhandled: list[Any]) -> None:
    pid = watcher.until(all_are("idle")).ranks[2].pid
    os.kill(pid, signal.SIGKILL)
    lost = watcher.until(lambda s: s.ranks[2].state == "lost")
    assert "killed by SIGKILL" in lost.ranks[2].reason
    assert lost.ranks_by_state() == {"idle": "0-1,3", "lost": "2"}
    assert (lost.health, lost.ranks[2].memory_bytes) == ("trouble", None)
    mesh.heal()
    healed = watcher.until(all_are("idle"))
    assert healed.ranks[2].pid != pid and healed.ranks[2].reason == ""


def test_a_resize_is_told_as_a_whole(mesh: Mesh, watcher: Watcher) -> None:
    watcher.until(all_are("idle"))
    size = mesh.sizes["gpus"]
    mesh.resize(gpus=size + 1)
    watcher.until(lambda s: dict(s.sizes)["gpus"] == size + 1 and all(r.state == "idle" for r in s.ranks))
    mesh.resize(gpus=size)
    watcher.until(lambda s: dict(s.sizes)["gpus"] == size and len(s.ranks) == 4)


def test_one_who_looks_on_is_no_client_and_holds_no_lease(mesh: Mesh) -> None:
    other = meshes.attach(mesh.name, listens=False, observes=True)
    status = other.status()
    assert len(status.clients) == 1
    assert mesh._session.request(GetMesh())  # the mesh answers both
    other._session.close()


def test_a_snapshot_is_what_the_types_say_and_survives_json(mesh: Mesh) -> None:
    found = mesh._session.request(Snapshot(placement_of(mesh).group))
    assert all(set(row) == set(RankStatus.__struct_fields__) for row in found.as_dict()["ranks"])
    assert MeshStatus.of(json.loads(json.dumps(found.as_dict()))) == found
