"""What a module of a notebook leads to: its attributes, objects in them, its class, variables. What a cell
changes of these counts, on the ranks and in compiled functions.
"""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import monarch_nb
from monarch_nb._parallel.variables import Variables
from monarch_nb._rank.tensor.files import checksums
from monarch_nb._tensor.compiled import MOST_TRIES
from monarch_nb._tensor.elsewhere import CalledCode, Elsewhere
from monarch_nb._tensor.reach import Reach
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import StaleCode

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

table = torch.ones(3)

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
        self.functions, self.tensors = [torch.sin, torch.cos], [torch.ones(3)]

    @torch.no_grad()
    def gain(self):
        return Settings.gain * self._gain

    def forward(self, x):
        x = self.activation(self.layer(x)) * self.gain() + self.shift + self.extra
        x = self.inner(x) * self.slots.gain * self.settings.gain * self.queue[0] * self.pair.gain
        x = x * float(self.number) * self.deep["a"][0]["b"][0].gain * float(self.array[1]) * sum(self.items)
        return self.functions[0](x * 2 if self.kind is Kind.TWICE else x) * self.tensors[0] * table

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
    "a tensor in a list in place": "model.tensors[0].mul_(0.9)",
    "a private attribute": "model._gain = 1.2",
    "a member of an enumeration": "model.kind = Kind.TWICE",
}
OF_CLASSES = {
    "a tensor that is read, in place": "table.mul_(0.8)",
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


class Trained:
    """A model, its optimiser, and a step of training, which may be compiled."""

    def __init__(self, model: nn.Module, optimizer: str) -> None:
        self.model = model
        arguments = {"SGD": {"lr": 0.1, "momentum": 0.9}, "AdamW": {"lr": 0.01}}[optimizer]
        self.optimizer = getattr(torch.optim, optimizer)(model.parameters(), **arguments)
        self.saved: Any = None

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def save(self) -> None:
        self.saved = copy.deepcopy(self.optimizer.state_dict())

    def halve_gradients(self) -> None:
        for parameter in self.model.parameters():
            parameter.register_hook(lambda gradient: gradient / 2)


OF_TRAINING: dict[str, Callable[[Any], Any]] = {
    "frozen": lambda it: it.model[0].weight.requires_grad_(False),
    "trained again": lambda it: it.model[0].weight.requires_grad_(True),
    "saved": lambda it: it.save(),
    "its optimiser's state loaded": lambda it: it.optimizer.load_state_dict(it.saved),
    "its optimiser's state cleared": lambda it: it.optimizer.state.clear(),
    "a hook of gradients": lambda it: it.halve_gradients(),
    "another rate": lambda it: it.optimizer.param_groups[0].update(lr=0.02),
    "not training": lambda it: it.model.eval(),
    "a decay": lambda it: it.optimizer.param_groups[0].update(weight_decay=0.1),
}


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("make", [placed, by_ddp])
def test_replays_see_how_a_model_is_trained(
    mesh: Mesh, make: Callable[[Any, Mesh], Any], optimizer: str
) -> None:
    torch.manual_seed(0)
    plain = Trained(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double(), optimizer)
    ours = Trained(make(copy.deepcopy(plain.model), mesh), optimizer)
    step = monarch_nb.compile(ours.step)
    x, y = torch.randn(2, 8, 3).double()
    shared = [monarch_nb.distribute(t, mesh, ["data_parallel"]) for t in (x, y)]
    for what, change in {"at first": lambda _: None, **OF_TRAINING}.items():
        change(plain), change(ours)
        before = step.num_replayed
        for _ in range(6):
            wanted, found = plain.step(x, y), step(*shared)
            assert torch.allclose(found.full(), wanted, rtol=1e-9, atol=1e-12), what
        assert step.num_replayed > before, what


DRAWS = {
    "Python": lambda: random.random(),
    "numpy": lambda: np.random.rand(),
    "a generator": lambda: float(OWN.random()),
}
OWN = np.random.default_rng(0)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_replay_repeats_no_random_numbers(mesh: Mesh, draw: Callable[[], float]) -> None:
    """Nor a decision by one, which two recordings may have in common."""

    def step(x: Any) -> Any:
        return x + 1 if draw() < 2 else x

    x = monarch_nb.distribute(torch.zeros(8), mesh, ["data_parallel"])
    compiled = monarch_nb.compile(step)
    for _ in range(MOST_TRIES - 1):
        compiled(x)
    with pytest.warns(UserWarning, match="step isn't replayed"):
        compiled(x)
    assert compiled.num_replayed == 0


class Raising:
    """An object that raises from everything."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("__eq__")

    def __hash__(self) -> int:
        raise RuntimeError("__hash__")


class RaisingList(list[int]):
    def __len__(self) -> int:
        raise RuntimeError("__len__")


def facts(value: Any) -> list[Any]:
    found = Reach([])
    found.add(("value",), value)
    return found.facts


@pytest.mark.parametrize("make", [Raising, lambda: RaisingList([next(_numbers)]), lambda: [Raising()]])
def test_an_object_that_raises_stands_for_itself(make: Callable[[], Any]) -> None:
    value = make()
    before = facts(value)
    assert before == facts(value) and before != facts(make())


def test_a_large_array_is_told_of_once() -> None:
    array = np.zeros(1_000_000)
    with pytest.warns(UserWarning, match="the array value of .* is compared before each call") as told:
        before = facts(array)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array[77] = 1
        assert facts(array) != before
    constant = np.zeros(1_000_000)
    constant.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert facts(constant) == facts(constant) != facts(constant.copy())


FILE = """
import torch
from torch import nn
import monarch_nb

gain = 1.0

def helper(x):
    return x * gain

@monarch_nb.remote
def remote_one(x):
    return x * gain

@torch.no_grad()
def decorated(x):
    return x * gain

class Callable:
    def __call__(self, x):
        return x * gain

class Methods:
    def method(self, x):
        return x * gain

class OfFile(nn.Module):
    shift = 0.0

    def forward(self, x):
        return helper(x) + self.shift
"""


@pytest.fixture
def file(mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the user's with a layer; every test has one of another name."""
    name = f"file_of_user_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    mesh.execute(look_in, str(tmp_path))
    yield importlib.import_module(name)
    mesh.execute(look_away, str(tmp_path))


_numbers = itertools.count()


def look_in(folder: str) -> None:
    sys.path.insert(0, folder)


def look_away(folder: str) -> None:
    sys.path.remove(folder)


def edit(module: Any, before: str, after: str) -> None:
    """Change the file of a module, as an editor does."""
    path = Path(module.__file__)
    path.write_text(path.read_text().replace(before, after))
    os.utime(path, (next(_times),) * 2)


_times = itertools.count(2_000_000_000)


@pytest.mark.parametrize(
    ("owner", "name", "value"), [("", "gain", 3.0), ("OfFile", "shift", 2.0)], ids=["module", "class"]
)
def test_a_variable_of_a_file_is_each_process_own(
    mesh: Mesh, file: Any, owner: str, name: str, value: float
) -> None:
    plain = file.OfFile()
    model = monarch_nb.parallelize(plain, mesh, "ddp")
    x = torch.ones(8)
    assert torch.equal(model(x).full(), x)
    setattr(getattr(file, owner, file), name, value)
    with pytest.warns(UserWarning, match=f"{name} has another value on ranks") as told:
        model(x)
    assert told[0].filename == __file__
    _, _, typed = str(told[0].message).partition("; ")
    eval(typed.removesuffix(" sets it there"), {"mesh": mesh, file.__name__: file})
    assert torch.equal(model(x).full(), plain(x)) and not torch.equal(plain(x), x)


def test_a_file_that_was_edited(mesh: Mesh, file: Any) -> None:
    """This program loads the new code, as `%autoreload` does; ranks do when they're told to."""
    plain = file.OfFile()
    model = monarch_nb.parallelize(plain, mesh, "ddp")
    x = torch.ones(8)
    assert torch.equal(model(x).full(), x)
    edit(file, "x * gain", "x * gain * 2")
    importlib.reload(file)
    told = f"ranks have loaded other code of {file.__name__}.helper than this program: mesh.sync"
    with pytest.warns(UserWarning, match=told):
        model(x)
    with pytest.warns(UserWarning, match=told):  # so has one that's made now
        monarch_nb.parallelize(file.OfFile(), mesh, "ddp")
    mesh.sync()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(model(x).full(), plain(x)) and torch.equal(plain(x), 2 * x)


def importing(file: Any) -> Any:
    """Return a function of a cell that imports a module itself."""
    cell = f"def called(x):\n    import {file.__name__} as file\n    return file.helper(x)"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, "<ipython-input-7-0>", "exec"), namespace)
    return namespace["called"]


CALLS: dict[str, Any] = {
    "itself": lambda mesh, file, x: mesh.execute(file.helper, x),
    "by another": lambda mesh, file, x: mesh.execute(lambda x: file.helper(x), x),
    "imported in it": lambda mesh, file, x: mesh.execute(importing(file), x),
    "partial": lambda mesh, file, x: mesh.execute(functools.partial(file.helper), x),
    "decorated": lambda mesh, file, x: mesh.execute(file.decorated, x),
    "an object": lambda mesh, file, x: mesh.execute(file.Callable(), x),
    "a method": lambda mesh, file, x: mesh.execute(file.Methods().method, x),
    "remote": lambda mesh, file, x: file.remote_one(x),
    "a remote one executed": lambda mesh, file, x: mesh.execute(file.remote_one, x),
    "one rank": lambda mesh, file, x: monarch_nb.call_on_shard_and_fetch(file.helper, x).get(),
}


@pytest.mark.parametrize("way", CALLS)
def test_a_function_of_a_file_that_was_edited(mesh: Mesh, file: Any, way: str) -> None:
    x = torch.ones(8)

    def called() -> Any:
        with mesh.activate():
            found = CALLS[way](mesh, file, x)
            return found.full() if isinstance(found, Tensor) else found

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(called(), x)
        edit(file, "x * gain", "x * gain * 2")
        assert torch.equal(called(), x)  # nobody has loaded it
    importlib.reload(file)
    told = f"ranks have loaded other code of {file.__name__}.[A-Za-z_.]+ than this program: mesh.sync"
    with pytest.warns(UserWarning, match=told) as warned:
        called()
    assert warned[0].filename == __file__ and len(warned) == 1
    mesh.sync()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(called(), 2 * x)


class Hostile:
    """A callable that can't be looked into."""

    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)

    def __call__(self) -> None:
        pass


class Ranks:
    """Ranks that have loaded what this program has, and note what they are asked for."""

    def __init__(self) -> None:
        self.checksums = self
        self.asked: list[list[tuple[str, str]]] = []

    def call(self, names: list[tuple[str, str]]) -> Any:
        self.asked.append(names)
        return self

    def get(self, timeout: float) -> dict[int, list[int | None]]:
        return {0: checksums(self.asked[-1])}


def test_what_a_function_leads_to_is_asked_for_once(file: Any) -> None:
    ranks = Ranks()
    checked = CalledCode(ranks)

    def leads_there(x: Any) -> Any:
        return file.OfFile()(file.helper(x))

    for _ in range(3):
        checked.check(leads_there, None)
        checked.check(len, None)
        checked.check(Hostile(), None)
    [names] = ranks.asked
    assert {(file.__name__, "helper"), (file.__name__, "OfFile.forward")} <= set(names)
    importlib.reload(file)
    checked.check(leads_there, None)
    assert ranks.asked == [names, names]


def test_a_mesh_that_is_strict_calls_no_other_code(file: Any) -> None:
    ranks = Ranks()
    ranks.get = lambda timeout: {0: [1] * len(ranks.asked[-1])}  # type: ignore[method-assign]
    checked, mesh = CalledCode(ranks), SimpleNamespace(sync_mode="strict")
    for _ in range(2):  # not only the first time
        with pytest.raises(StaleCode, match=r"helper than this program: mesh\.sync"):
            checked.check(file.helper, mesh)


def test_sync_loads_it_here_and_there(mesh: Mesh, file: Any) -> None:
    plain = file.OfFile()
    model = monarch_nb.parallelize(plain, mesh, "ddp")
    x = torch.ones(8)
    assert torch.equal(model(x).full(), x)
    edit(file, "return helper(x)", "return helper(x)[:, None].expand(-1, 2)")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "class OfFile" in str(mesh.sync())
        assert torch.equal(model(x).full(), plain(x)) and plain(x).shape == (8, 2)


def test_a_mesh_that_is_strict_runs_no_other_code(file: Any) -> None:
    there = Elsewhere(lambda names: [[1] * len(names)], lambda: "strict")
    with pytest.raises(StaleCode, match=r"helper than this program: mesh\.sync"):
        Variables([file.OfFile()], there)
