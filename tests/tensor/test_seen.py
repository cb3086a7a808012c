"""What a module of a notebook leads to: its attributes, objects in them, its class, variables. What a cell
changes of these counts, on the ranks and in compiled functions.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import monarch_nb
from monarch_nb.distributed import Mesh

CELL = """
import collections, dataclasses, decimal, enum
import numpy, torch
from torch import nn
from torch.nn import functional
import settings_of_user

@dataclasses.dataclass(slots=True)
class Slots:
    gain: float = 1.0

class Settings:
    gain = 1.0

class Kind(enum.Enum):
    ONCE = 1
    TWICE = 2

class Inner(nn.Module):
    gain = 1.0
    def forward(self, x):
        return x * self.gain

Pair = collections.namedtuple("Pair", "gain other")

class Model(nn.Module):
    shift = 0.0

    def __init__(self):
        super().__init__()
        self.layer, self.inner = nn.Linear(3, 3), Inner()
        self.slots, self.settings, self.kind = Slots(), Settings(), Kind.ONCE
        self.queue, self.pair, self.number = collections.deque([1.0]), Pair(1.0, 2.0), decimal.Decimal(1)
        self.deep = {"a": [{"b": [Slots()]}]}
        self.array, self.items = numpy.ones(3), [1.0] + [0.0] * 2000
        self.activation, self.extra, self._gain = functional.relu, torch.zeros(3), 1.0
        self.functions = [torch.sin, torch.cos]

    @torch.no_grad()
    def gain(self):
        return Settings.gain * self._gain

    def forward(self, x):
        x = self.activation(self.layer(x)) * self.gain() + self.shift + self.extra
        x = self.inner(x) * self.slots.gain * self.settings.gain * self.queue[0] * self.pair.gain
        x = x * float(self.number) * self.deep["a"][0]["b"][0].gain * float(self.array[1]) * sum(self.items)
        return self.functions[0](x * 2 if self.kind is Kind.TWICE else x)

def of_module(model, x):
    return model(x) * settings_of_user.gain
"""
OF_OBJECTS = {
    "a class with slots": "model.slots.gain = 0.5",
    "a deque": "model.queue[0] = 1.5",
    "a named tuple": "model.pair = Pair(0.7, 2.0)",
    "a decimal number": "model.number = decimal.Decimal('1.25')",
    "far inside": "model.deep['a'][0]['b'][0].gain = 0.8",
    "an array": "model.array[1] = 1.1",
    "a long list": "model.items[2000] = 0.25",
    "a function of torch": "model.activation = functional.gelu",
    "a function in a list": "model.functions[0] = torch.cos",
    "a tensor": "model.extra = torch.full((3,), 0.1)",
    "a tensor in place": "model.extra.add_(0.1)",
    "a private attribute": "model._gain = 1.2",
    "a member of an enumeration": "model.kind = Kind.TWICE",
}
OF_CLASSES = {
    "a class that is read": "Settings.gain = 0.9",
    "the module's class": "Model.shift = 0.3",
    "an inner module's class": "Inner.gain = 1.3",
    "a method": "Inner.forward = lambda self, x: x * 0.9",
    "a decorated method": "Model.gain = torch.no_grad()(lambda self: 0.5)",
}
OF_THE_CALL = {
    "a variable of a file of the user's": "settings_of_user.gain = 0.6",
    "a hook": "model.inner.register_forward_hook(lambda module, args, result: result * 1.5)",
}
CHANGES = {**OF_OBJECTS, **OF_CLASSES}


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "settings_of_user.py").write_text("gain = 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, "<ipython-input-7-0>", "exec"), made)
    torch.manual_seed(0)
    monkeypatch.setattr(made["settings_of_user"], "gain", 1.0)
    return made


def check_changes(cell: dict[str, Any], changes: dict[str, str], models: list[Any], check: Any) -> None:
    """Make a change of two modules, the mesh's and the plain one, and compare; then the next one."""
    for (what, source), number in zip(changes.items(), itertools.count(8), strict=False):
        code = compile(source, f"<ipython-input-{number}-0>", "exec")
        for each in models:
            cell["model"] = each
            exec(code, cell)
        assert check(), what


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_see_what_a_cell_changes(mesh: Mesh, cell: dict[str, Any], strategy: str) -> None:
    plain = cell["Model"]()
    model = monarch_nb.parallelize(plain, mesh, strategy)
    x = torch.randn(8, 3)
    last = plain(x)

    def is_same() -> bool:
        nonlocal last
        wanted, before = plain(x), last
        last = wanted
        assert not torch.allclose(wanted, before), "the change does something"
        return all(torch.allclose(model(x).full(), wanted, atol=1e-5) for _ in range(2))

    assert torch.allclose(model(x).full(), last, atol=1e-6)
    check_changes(cell, CHANGES, [plain, model], is_same)


def placed(module: Any, mesh: Mesh) -> Any:
    return monarch_nb.module_to_mesh(module, mesh)


def by_ddp(module: Any, mesh: Mesh) -> Any:
    return monarch_nb.parallelize(module, mesh, "ddp")


@pytest.mark.parametrize("make", [placed, by_ddp])
def test_replays_see_what_a_cell_changes(
    mesh: Mesh, cell: dict[str, Any], make: Callable[[Any, Mesh], Any]
) -> None:
    plain = cell["Model"]()
    model = make(plain, mesh)
    plain_x = torch.randn(8, 3)
    x = monarch_nb.distribute(plain_x, mesh, ["data_parallel"])
    step = monarch_nb.compile(cell["of_module"])

    def is_same() -> bool:
        before, wanted = step.num_replayed, cell["of_module"](plain, plain_x)
        are_same = all(torch.allclose(step(model, x).full(), wanted, atol=1e-5) for _ in range(6))
        assert step.num_replayed > before, "it's replayed again after a change"
        return are_same

    assert is_same()
    check_changes(cell, {**CHANGES, **OF_THE_CALL}, [plain, model], is_same)


READS_FILE = """
class OfFile(nn.Module):
    def forward(self, x):
        return x * settings_of_user.gain
"""


def look_in(folder: str) -> None:
    sys.path.insert(0, folder)


def test_a_variable_of_a_file_is_each_process_own(mesh: Mesh, cell: dict[str, Any], tmp_path: Path) -> None:
    mesh.execute(look_in, str(tmp_path))
    exec(compile(READS_FILE, "<ipython-input-8-0>", "exec"), cell)
    model = monarch_nb.parallelize(cell["OfFile"](), mesh, "ddp")
    x, settings = torch.ones(8), cell["settings_of_user"]
    assert torch.equal(model(x).full(), x)
    settings.gain = 3.0
    with pytest.warns(UserWarning, match="settings_of_user.gain was changed in this program") as told:
        model(x)
    assert told[0].filename == __file__
    _, _, typed = str(told[0].message).rpartition("too: ")
    eval(typed, {"mesh": mesh, "setattr": setattr, "settings_of_user": settings})
    assert torch.equal(model(x).full(), 3 * x)
