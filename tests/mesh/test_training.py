"""Training that survives: a rank is killed in the middle of a step, and the run ends as if nothing had
happened.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import monarch_nb
import monarch_nb.actor
from monarch_nb.actor import Checkpointed, ProcMesh, endpoint, this_host
from monarch_nb.exceptions import DeviceMeshError
from monarch_nb.spmd import setup_torch_elastic_env

T = 120
NUM_STEPS = 12
TOLERANCE = 1e-6
"""Of the loss, absolute: the sums of a step are taken in the same order, so they should be equal."""


pytestmark = pytest.mark.usefixtures("unhandled")


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 3})
    mesh.initialized.get(T)
    setup_torch_elastic_env(mesh)
    yield mesh
    mesh.stop(grace_s=0.0).get(T)


class Trainer(Checkpointed):
    """A small model; wrapped by subclasses. `trap`: while this file is there, rank 1 dies in the middle of
    step 8.
    """

    def __init__(self, trap: str = "") -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        torch.manual_seed(0)
        self.trap = trap
        self.step_number = 0
        self.model: Any = self.wrap(
            torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def wrap(self, model: torch.nn.Module) -> Any:
        raise NotImplementedError

    @endpoint
    def num_steps(self) -> int:
        return self.step_number

    @endpoint
    def step(self) -> float:
        generator = torch.Generator().manual_seed(1000 * self.step_number + dist.get_rank())
        x = torch.randn(8, 6, generator=generator)
        loss = torch.nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))
        if self.step_number == 8 and dist.get_rank() == 1 and os.path.exists(self.trap):
            os.unlink(self.trap)
            os.kill(os.getpid(), signal.SIGKILL)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step_number += 1
        return float(loss.detach())


class Ddp(Trainer):
    checkpoint_every, checkpoint_state = 3, "replicated"

    def wrap(self, model: torch.nn.Module) -> Any:
        return torch.nn.parallel.DistributedDataParallel(model)

    def state_dict(self) -> Any:
        return {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step_number,
        }

    def load_state_dict(self, state: Any) -> None:
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step_number = state["step"]


class Fsdp(Trainer):
    checkpoint_every, checkpoint_state = 3, "sharded"

    def wrap(self, model: torch.nn.Module) -> Any:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if list(layer.parameters()):
                fully_shard(layer)
        fully_shard(model)
        return model

    def state_dict(self) -> Any:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step_number}

    def load_state_dict(self, state: Any) -> None:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self.step_number = state["step"]


def train(procs: ProcMesh, trainer: Any, recover: Any) -> dict[int, list[float]]:
    """Train to the end; return the losses of all ranks by step, those of repeated steps once."""
    losses: dict[int, list[float]] = {}
    num_failures = 0
    while (step := trainer.num_steps.call().get(T).reduce("equal")) < NUM_STEPS:
        try:
            losses[step] = list(trainer.step.call().get(T).values())
        except DeviceMeshError:
            num_failures += 1
            assert num_failures == 1
            recover(procs)
    assert num_failures == (1 if recover is not None else 0)
    return losses


@pytest.mark.parametrize("cls", [Ddp, Fsdp])
def test_the_loss_curve_goes_on_and_ends_equal(procs: ProcMesh, tmp_path: Path, cls: type) -> None:
    undisturbed = train(procs, procs.spawn("undisturbed", cls), None)
    trap = tmp_path / "trap"
    trap.write_text("")
    disturbed = train(procs, procs.spawn("disturbed", cls, str(trap)), monarch_nb.heal_mesh)
    assert not trap.exists()
    assert undisturbed.keys() == disturbed.keys() == set(range(NUM_STEPS))
    for step in range(NUM_STEPS):
        assert disturbed[step] == pytest.approx(undisturbed[step], abs=TOLERANCE)
    assert sum(undisturbed[NUM_STEPS - 1]) < sum(undisturbed[0])


@pytest.mark.parametrize("cls", [Ddp, Fsdp])
def test_it_goes_on_with_fewer(procs: ProcMesh, tmp_path: Path, cls: type) -> None:
    trap = tmp_path / "trap"
    trap.write_text("")
    trainer = procs.spawn("trainer", cls, str(trap))
    losses = train(procs, trainer, ProcMesh.shrink)
    sizes = [len(losses[step]) for step in range(NUM_STEPS)]
    num_before = sizes.count(3)  # steps since the last checkpoint were repeated by those that are left
    assert sizes == [3] * num_before + [2] * (NUM_STEPS - num_before) and 0 < num_before <= 8
    assert sum(losses[NUM_STEPS - 1]) / 2 < sum(losses[0]) / 3
