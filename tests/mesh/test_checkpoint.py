"""State that survives its actors: saved behind their backs, restored by a heal, from memory or from disk."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from faults import kill

from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.states import ProcState
from monarch_nb.actor import Checkpointed, ProcMesh, endpoint, this_host
from monarch_nb.actor.handle import placement_of
from monarch_nb.exceptions import ActorError, MeshError
from monarch_nb.spmd import setup_torch_elastic_env

T = 60


pytestmark = pytest.mark.usefixtures("unhandled")


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 3})
    mesh.initialized.get(T)
    yield mesh
    mesh.stop(grace_s=0.0).get(T)


class Tally(Checkpointed):
    """Each rank has a state of its own."""

    checkpoint_every = 3

    def __init__(self, folder: str = "") -> None:
        self.checkpoint_dir = folder
        self.numbers: dict[int, Any] = {0: torch.zeros(4), 1: [torch.zeros(2, dtype=torch.int64), "text"]}
        self.total = 0

    def state_dict(self) -> Any:
        return {"numbers": self.numbers, "total": self.total}

    def load_state_dict(self, state: Any) -> None:
        self.numbers, self.total = state["numbers"], state["total"]

    @endpoint
    def add(self, x: int) -> int:
        self.total += x
        self.numbers[0] += x
        return self.total

    @endpoint
    def look(self) -> tuple[int, float, list[Any]]:
        return self.total, float(self.numbers[0].sum()), [type(k).__name__ for k in self.numbers]

    @endpoint
    def fail(self) -> None:
        raise ValueError("on purpose")


def add_own_rank(tally: Any, times: int) -> None:
    for _ in range(times):
        for rank in range(3):
            tally.slice(gpus=rank).add.call_one(rank + 1).get(T)


def test_each_rank_goes_on_from_its_own_state_on_disk(procs: ProcMesh, tmp_path: Path) -> None:
    tally: Any = procs.spawn("tally", Tally, str(tmp_path))
    add_own_rank(tally, 3)  # saved after the third
    path = tally.checkpoint.call().get(T).item(gpus=0)
    assert Path(path).parent.parent == tmp_path and path.endswith("step-3")
    add_own_rank(tally, 1)
    kill(procs, 1)
    report = procs.heal()
    assert report.actors == {"tally": (0, 1, 2)}
    assert "actor 'tally' goes on from its state after 3 calls (from disk)" in report.messages
    assert list(tally.num_calls.call().get(T).values()) == [3, 3, 3]
    found = list(tally.look.call().get(T).values())
    assert found == [(3, 12.0, ["int", "int"]), (6, 24.0, ["int", "int"]), (9, 36.0, ["int", "int"])]


class Same(Tally):
    """All ranks have the same state."""

    checkpoint_every, checkpoint_state = 1, "replicated"


def test_a_replicated_state_comes_from_a_peers_memory(procs: ProcMesh) -> None:
    same: Any = procs.spawn("same", Same)
    for _ in range(7):
        same.add.call(5).get(T)
    kill(procs, 2)
    report = procs.heal()
    (message,) = [s for s in report.messages if "'same'" in s]
    assert message.endswith("after 7 calls (from the others' memory)")
    assert list(same.look.call().get(T).values()) == [(35, 140.0, ["int", "int"])] * 3
    assert list(same.add.call(1).get(T).values()) == [36] * 3


class Gated(Same):
    """Begins when somebody opens its gate."""

    def __init__(self, gates: str) -> None:
        super().__init__()
        (Path(gates) / os.environ["GATE"]).open("rb").close()


def open_gate(gates: Path, rank: int) -> None:
    (gates / str(rank)).open("wb").close()  # returns when both sides are there


def test_a_rank_lost_before_all_had_begun_saves_with_the_others_again(
    procs: ProcMesh, tmp_path: Path
) -> None:
    for rank in range(3):
        os.mkfifo(tmp_path / str(rank))
    procs.set_environment([{"GATE": str(rank)} for rank in range(3)]).get(T)
    gated: Any = procs.spawn("gated", Gated, str(tmp_path))
    kill(procs, 2)
    open_gate(tmp_path, 0)  # begins, and can't save with one who is dead
    assert gated.slice(gpus=0).num_calls.call_one().get(T) == 0
    opener = threading.Thread(target=open_gate, args=(tmp_path, 2))
    opener.start()
    report = procs.heal()
    opener.join(T)
    assert report.actors == {"gated": (2,)}
    assert "actor 'gated' begins anew on what was lost: it had no checkpoint" in report.messages
    open_gate(tmp_path, 1)
    for i in range(5):  # rank 1 and 2 save what they begin with, rank 0 has tried that before
        assert list(gated.add.call(1).get(T).values()) == [i + 1] * 3
    paths = set(gated.checkpoint.call().get(T).values())
    assert len(paths) == 1 and paths.pop().endswith("step-5")


def test_all_ranks_lost_there_is_still_the_disk(procs: ProcMesh) -> None:
    same: Any = procs.spawn("same", Same)
    for _ in range(4):
        same.add.call(1).get(T)
    same.checkpoint.call().get(T)
    for rank in range(3):
        pid = procs.flatten("rank").slice(rank=rank).execute(os.getpid).get(T).item()
        os.kill(pid, signal.SIGKILL)
    while procs.healthy():
        pass
    while any(
        r.state == ProcState.RUNNING
        for r in procs._session.request(Status()).procs
        if r.group == placement_of(procs).group
    ):
        pass
    report = procs.heal()
    assert any(s.endswith("after 4 calls (from disk)") for s in report.messages)
    assert list(same.look.call().get(T).values()) == [(4, 16.0, ["int", "int"])] * 3


def test_a_failed_call_is_no_reason_to_go_back(procs: ProcMesh) -> None:
    same: Any = procs.spawn("same", Same)
    same.add.call(1).get(T)
    with pytest.raises(ActorError, match="on purpose"):
        same.fail.call().get(T)
    assert list(same.add.call(1).get(T).values()) == [2] * 3


def test_a_save_that_dies_in_the_middle_leaves_the_last_good_one(procs: ProcMesh, tmp_path: Path) -> None:
    tally: Any = procs.spawn("tally", Tally, str(tmp_path))
    for _ in range(3):
        tally.add.call(1).get(T)
    good = tally.checkpoint.call().get(T).item(gpus=0)
    tally.add.call(1).get(T)
    # Two of three begin to save; the third never will.
    pending = tally.slice(gpus=slice(0, 2)).checkpoint.call()
    kill(procs, 2)
    with pytest.raises(ActorError, match=r"CheckpointError: .* rank 2 (was lost|lost)"):
        pending.get(T)
    assert [p.name for p in Path(good).parent.iterdir() if not p.name.startswith(".")].count("step-3") == 1
    assert not (Path(good).parent / "step-4").exists()
    procs.heal()
    assert [v[0] for v in tally.look.call().get(T).values()] == [3, 3, 3]


def test_old_ones_go(procs: ProcMesh, tmp_path: Path) -> None:
    tally: Any = procs.spawn("tally", Tally, str(tmp_path))
    for _ in range(12):
        tally.add.call(1).get(T)
    last = tally.checkpoint.call().get(T).item(gpus=0)
    assert sorted(p.name for p in Path(last).parent.iterdir()) == ["step-12", "step-9"]
    assert os.stat(Path(last).parent).st_mode & 0o077 == 0


class Sharded(Checkpointed):
    """A DTensor over all ranks."""

    checkpoint_state = "sharded"

    def __init__(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.weight: DTensor = distribute_tensor(torch.zeros(12, 2), mesh, [Shard(0)])
        self.step = 0

    def state_dict(self) -> Any:
        return {"weight": self.weight, "step": self.step}

    def load_state_dict(self, state: Any) -> None:
        self.weight, self.step = state["weight"], state["step"]

    @endpoint
    def fill(self) -> None:
        local = self.weight.to_local()
        local.copy_(torch.full_like(local, float(dist.get_rank() + 1)))
        self.step += 1

    @endpoint
    def look(self) -> tuple[list[float], int]:
        return self.weight.to_local()[:, 0].tolist(), self.step


def test_shards_are_loaded_by_another_number_of_ranks(procs: ProcMesh) -> None:
    setup_torch_elastic_env(procs)
    sharded: Any = procs.spawn("sharded", Sharded)
    sharded.fill.call().get(T)
    sharded.checkpoint.call().get(T)
    kill(procs, 0)
    report = procs.heal()
    assert any("process group has been made anew" in s for s in report.messages)
    assert list(sharded.look.call().get(T).values()) == [([1.0] * 4, 1), ([2.0] * 4, 1), ([3.0] * 4, 1)]
    procs.resize(gpus=2)
    assert list(sharded.look.call().get(T).values()) == [
        ([1.0] * 4 + [2.0] * 2, 1),
        ([2.0] * 2 + [3.0] * 4, 1),
    ]


def test_a_kind_of_state_that_is_none_is_refused(procs: ProcMesh) -> None:
    class Odd(Tally):
        checkpoint_state = "shared"

    with pytest.raises(
        MeshError, match="checkpoint_state is one of 'own', 'replicated', 'sharded', not 'shared'"
    ):
        procs.spawn("odd", Odd).initialized.get(T)


def test_a_host_that_is_taken_away_saves_first(tmp_path: Path) -> None:
    """SIGTERM to the controller, as a scheduler sends it: the state of now is on disk when it has ended."""
    from processes import wait_for_exit

    from monarch_nb import start
    from monarch_nb._client import session as sessions

    before = sessions.current()
    mesh = start("preempted", {"procs": 2})
    tally: Any = mesh.spawn("tally", Tally, str(tmp_path))
    for _ in range(4):
        tally.add.call(1).get(T)
    controller = mesh._session.connection
    assert controller is not None
    os.kill(controller.pid, signal.SIGTERM)
    assert wait_for_exit(controller.pid)
    (folder,) = tmp_path.iterdir()
    assert (folder / "step-4" / ".metadata").exists()
    mesh._session.close()
    sessions.use(before)
