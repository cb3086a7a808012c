"""torchft: one replica group is killed, the others don't stop, and it comes back with their state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_nb.actor
from monarch_nb.actor import ProcMesh, this_host
from monarch_nb.ft import ReplicaGroups

pytest.importorskip("torchft", reason="needs torchft: pip install torchft")


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"replicas": 3})
    mesh.initialized.get(60)
    yield mesh
    mesh.stop(grace_s=0.0).get(60)


def train(trap: str, end_file: str) -> tuple[int, int, list[float]]:
    """Train until ten steps after group 1 has come back; it dies at its fifth step or after, once.

    Returns:
        Pid, the number of the first step, and the parameters at the end.
    """
    import signal
    from pathlib import Path

    import torch
    import torchft

    from monarch_nb.ft import average_gradients, make_manager

    torch.manual_seed(int(os.environ["REPLICA_GROUP_ID"]))  # different: they agree only if they are made to
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def state() -> dict[str, object]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(found: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])

    manager = make_manager(state, load, timeout_s=5.0)
    ft_optimizer = torchft.Optimizer(manager, optimizer)
    first = -1
    try:
        while not (os.path.exists(end_file) and manager.current_step() >= int(Path(end_file).read_text())):
            generator = torch.Generator().manual_seed(manager.current_step())
            x = torch.randn(16, 4, generator=generator)
            ft_optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            if (
                manager.current_step() >= 5
                and manager.num_participants() == 3
                and os.environ["REPLICA_GROUP_ID"] == "1"
                and os.path.exists(trap)
            ):
                os.unlink(trap)
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            average_gradients(manager, model.parameters())
            ft_optimizer.step()
            if first < 0:
                first = manager.current_step()
                if os.environ["REPLICA_GROUP_ID"] == "1" and not os.path.exists(
                    trap
                ):  # back again, at the others' step
                    with open(end_file + ".new", "w") as file:
                        file.write(str(first + 10))
                    os.rename(end_file + ".new", end_file)
    finally:
        manager.shutdown(wait=False)
    return os.getpid(), first, [p for tensor in model.parameters() for p in tensor.flatten().tolist()]


def test_the_others_go_on(procs: ProcMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch_nb.actor, "unhandled_fault_hook", lambda failure: None)
    trap = tmp_path / "trap"
    trap.write_text("")
    pids = list(procs.execute(os.getpid).get(60).values())
    groups = ReplicaGroups(procs, "replicas", min_replicas=2)
    results = groups.run(train, str(trap), str(tmp_path / "end"))
    assert [r.num_restarts for r in results] == [0, 1, 0], [str(e) for r in results for e in r.errors]
    found = [r.values.item() for r in results if r.values is not None]
    assert len(found) == 3
    assert [found[0][0], found[2][0]] == [pids[0], pids[2]], "the others were not restarted"
    assert found[1][0] != pids[1]
    assert "killed by SIGKILL" in str(results[1].errors[0])
    assert found[1][1] >= 5, "it went on from where the others were"
    for _, _, parameters in found[1:]:
        assert parameters == pytest.approx(found[0][2], abs=1e-6)


def test_bad_arguments(procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="the mesh has no dimension 'groups'; it has replicas"):
        ReplicaGroups(procs, "groups")
