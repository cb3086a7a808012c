"""Lightning's Trainer and Fabric in cells, actors and scripts. Skipped where Lightning isn't installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from own_meshes import own_mesh

from monarch_nb.actor import Actor, endpoint
from monarch_nb.mesh import Mesh
from monarch_nb.spmd import setup_torch_elastic_env

# Ranks and scripts import it, for two seconds: each process that runs tests would, too.
pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="lightning isn't installed")

TRAIN = """
import sys, torch, lightning, warnings

warnings.simplefilter("ignore")

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

data = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4)
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
                            enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), data)
found = trainer.world_size, trainer.global_step
print("trained", *found)
"""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("lightning", {"gpus": 2}) as found:
        setup_torch_elastic_env(found)
        yield found


def test_trainer_and_fabric_in_cells(mesh: Mesh) -> None:
    mesh.run(TRAIN, quiet=True)
    assert set(mesh.pull("found").values()) == {(2, 2)}
    mesh.run(
        "fabric = lightning.Fabric(accelerator='cpu', devices=2, strategy='ddp')\nfabric.launch()\n"
        "found = fabric.world_size, fabric.global_rank, fabric.all_reduce(torch.ones(1), "
        "reduce_op='sum').item()",
        quiet=True,
    )
    assert list(mesh.pull("found").values()) == [(2, 0, 2.0), (2, 1, 2.0)]


@pytest.mark.parametrize(
    "made",
    [
        "lightning.Fabric()",
        "lightning.Fabric(accelerator='cpu', precision='32-true')",
        "lightning.Fabric(strategy='ddp')",
        "lightning.Fabric(strategy=lightning.fabric.strategies.DDPStrategy())",
    ],
)
def test_fabric_alone_takes_all_ranks(mesh: Mesh, made: str) -> None:
    mesh.run(
        f"import lightning, torch\nfabric = {made}\nfabric.launch()\nfound = fabric.world_size, "
        "fabric.global_rank, fabric.all_reduce(torch.ones(1), reduce_op='sum').item()",
        quiet=True,
    )
    assert list(mesh.pull("found").values()) == [(2, 0, 2.0), (2, 1, 2.0)]


SINGLE = """
import os, torch
from monarch_nb._rank import launchers
before = {name: os.environ[name] for name in ("LOCAL_RANK",)}
launchers._num_gpus = lambda: 1
"""


def test_ranks_that_see_a_gpu_each_are_nodes_of_one_device(mesh: Mesh) -> None:
    """What is told of GPUs is made up: how many this rank sees. What Lightning makes of it is real."""
    mesh.run(SINGLE, quiet=True)
    try:
        mesh.run(
            "import lightning\nfabric = lightning.Fabric(accelerator='cpu')\nfabric.launch()\n"
            "found = fabric.world_size, fabric.global_rank, fabric.local_rank, fabric.all_reduce("
            "torch.ones(1), reduce_op='sum').item()",
            quiet=True,
        )
        assert list(mesh.pull("found").values()) == [(2, 0, 0, 2.0), (2, 1, 0, 2.0)]
    finally:
        mesh.run(
            "import importlib\nimportlib.reload(launchers)\nos.environ.update(before)\n"
            "del os.environ['NODE_RANK']",
            quiet=True,
        )


def test_trainer_alone_takes_all_ranks(mesh: Mesh) -> None:
    for strategy in ("", 'strategy="ddp", '):
        mesh.run(TRAIN.replace('devices=2, strategy="ddp", ', strategy), quiet=True)
        assert set(mesh.pull("found").values()) == {(2, 2)}


def test_what_was_said_about_devices_holds(mesh: Mesh) -> None:
    mesh.run(
        "import lightning\nfound = lightning.Fabric(devices=1, accelerator='cpu').world_size", quiet=True
    )
    assert set(mesh.pull("found").values()) == {1}


class Trainer(Actor):
    @endpoint
    def train(self, source: str) -> Any:
        names: dict[str, Any] = {"__name__": "training"}
        exec(source, names)
        return names["found"]


def test_trainer_in_an_actor(mesh: Mesh) -> None:
    trainer = mesh.spawn("trainer", Trainer)
    assert list(trainer.train.call(TRAIN).get(120).values()) == [(2, 2), (2, 2)]


class Fabric(Actor):
    @endpoint
    def meet(self) -> Any:
        import lightning
        import torch

        fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        model = fabric.setup(torch.nn.Linear(2, 1))
        fabric.backward(model(torch.ones(1, 2)).sum())
        return fabric.world_size, fabric.global_rank, fabric.all_reduce(torch.ones(1), reduce_op="sum").item()


def test_fabric_in_an_actor(mesh: Mesh) -> None:
    met = mesh.spawn("fabric", Fabric).meet.call().get(120)
    assert list(met.values()) == [(2, 0, 2.0), (2, 1, 2.0)]


def test_trainer_in_a_script(mesh: Mesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    for _ in range(2):
        mesh.run_script(tmp_path / "train.py")
    assert capsys.readouterr().out.count("[0-1] trained 2 2") == 2


def test_ranks_still_end_when_they_are_told(mesh: Mesh) -> None:
    """Lightning replaces the handler of SIGTERM and puts it back, through `signal.signal`: it must stay
    the rank's own.
    """
    mesh.run("import signal\nhandler = type(signal.getsignal(signal.SIGTERM)).__name__", quiet=True)
    assert set(mesh.pull("handler").values()) == {"partial"}
