"""Functions that ranks call: each call is what the function and its arguments are then, and none leaves
anything behind.
"""

from __future__ import annotations

import gc
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import monarch_nb
from monarch_nb._tensor import controller
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import DeviceMeshError

SCALE = """
import torch
scale = 2
def scaled(x):
    return x * scale
"""
Pair = namedtuple("Pair", "first second")  # as users write it


@pytest.fixture
def x(mesh: Mesh) -> Any:
    return monarch_nb.distribute(torch.ones(2), mesh)


def called(mesh: Mesh, how: str, function: Any, *args: Any) -> Any:
    """Call a function in one of the ways there are."""
    if how == "execute":
        found = mesh.execute(function, *args)
        return found.full() if isinstance(found, torch.Tensor) else found
    with mesh.activate():
        return monarch_nb.call_on_shard_and_fetch(function, *args).get(60)


WAYS = ["execute", "call_on_shard_and_fetch"]


@pytest.mark.parametrize("how", WAYS)
def test_a_variable_that_a_function_reads_may_change(mesh: Mesh, x: Any, how: str) -> None:
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(SCALE, cell)
    for scale in (2, 3, 2):
        cell["scale"] = scale
        assert torch.equal(called(mesh, how, cell["scaled"], x), torch.full((2,), float(scale)))


def test_a_variable_may_change_the_shape_of_a_result(mesh: Mesh, x: Any) -> None:
    times = 2
    repeated = monarch_nb.remote(lambda value: value.repeat(times))
    messages = mesh.tensor_grid().engine.stream
    for times in (2, 3, 3, 2):  # the function reads it
        found = repeated(x)
        assert found.shape == (2 * times,) and torch.equal(found.full(), torch.ones(2 * times))
    before = messages.num_messages
    with monarch_nb.coalescing():
        repeated(x)
        assert messages.num_messages == before, "what is known isn't asked"


def attribute(value: Any) -> Any:
    return value.value


def times(layer: nn.Module, x: Any) -> Any:
    return layer(x)


CHANGES: dict[str, tuple[Any, Callable[[Any, int], None], Callable[..., Any]]] = {
    "an attribute": (SimpleNamespace(value=0), lambda o, n: setattr(o, "value", n), attribute),
    "an item": ({"a": 0}, lambda o, n: o.update(a=n), lambda o: o["a"]),
    "an array": (numpy.zeros(3), lambda o, n: o.fill(n), lambda o: int(o.sum()) // 3),
    "a large array": (numpy.zeros(5000), lambda o, n: o.fill(n), lambda o: int(o.sum()) // 5000),
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("what", CHANGES)
def test_an_argument_may_change(mesh: Mesh, what: str, how: str) -> None:
    given, change, read = CHANGES[what]
    for number in (1, 2, 1):
        change(given, number)
        assert called(mesh, how, read, given) == number


def test_a_module_may_change(mesh: Mesh, x: Any) -> None:
    layer = nn.Linear(2, 2, bias=False)
    for number in (1.0, 5.0):
        with torch.no_grad():
            layer.weight.fill_(number)
        assert torch.equal(called(mesh, "execute", times, layer, x), torch.full((2,), 2 * number))


def test_a_variable_of_a_closure_may_change(mesh: Mesh) -> None:
    number = 1

    def read() -> int:
        return number

    found = [mesh.execute(read)]
    number = 2
    assert [*found, mesh.execute(read)] == [1, 2]


@pytest.mark.parametrize("size", [1, 5000], ids=["small", "large"])
def test_what_a_function_changes_of_its_arguments_is_forgotten(mesh: Mesh, size: int) -> None:
    def grown(items: Any, array: Any) -> tuple[int, float]:
        items.value.append(1)
        array += 1
        return len(items.value), float(array[0])

    given, array = SimpleNamespace(value=[]), numpy.zeros(size)
    assert [mesh.execute(grown, given, array) for _ in range(3)] == [(1, 1.0)] * 3
    assert given.value == [] and array[0] == 0


def test_arguments_arrive_as_they_are(mesh: Mesh, x: Any) -> None:
    def told(pair: Any, *, items: Any) -> list[str]:
        return [type(pair).__name__, str(pair.first.sum().item()), type(items).__name__, str(items[1]["a"])]

    assert mesh.execute(told, Pair(x, 1), items=(x, {"a": True})) == ["Pair", "2.0", "tuple", "True"]
    assert [mesh.execute(lambda n: type(n).__name__, n) for n in (1, 1.0, True)] == ["int", "float", "bool"]


def test_a_function_of_what_has_failed_is_not_called(mesh: Mesh, x: Any) -> None:
    def swallows(value: Any) -> str:
        try:
            return str(value.sum())
        except Exception:
            return "swallowed"

    def fails(value: Any) -> Any:
        raise ZeroDivisionError("first")

    twice = monarch_nb.remote(fails, propagate=lambda v: v)
    with mesh.activate():
        lost = twice(monarch_nb.per_rank(x))
    with pytest.raises(DeviceMeshError, match="ZeroDivisionError: first"):
        mesh.execute(swallows, lost)
    assert mesh.execute(lambda v: float(v.sum()), x) == 2.0


def test_calls_leave_nothing(mesh: Mesh, x: Any) -> None:
    engine = mesh.tensor_grid().engine
    for n in range(4 * controller._KEPT_OF_USERS):
        mesh.execute(lambda v, n: None, x, n)
    gc.collect()
    known = len(engine.definitions), len(engine._own_plans)
    for n in range(1000, 1050):
        mesh.execute(lambda v, n: None, x, n)
        mesh.execute(lambda v, n: None, x, numpy.zeros(5000))
    assert len(engine.definitions) <= known[0] + 2 and len(engine._own_plans) <= known[1] + 2
    assert engine.slots.num_live < 400


COMPILED = """
import torch, monarch_nb
scale = 2.0
@monarch_nb.remote
def scaled(x):
    return x * scale
@monarch_nb.compile
def step(x):
    return scaled(x) + 1
"""


def test_a_compiled_function_sees_the_variables_of_those_it_calls(mesh: Mesh, x: Any) -> None:
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(COMPILED, "<ipython-input-1-0>", "exec"), cell)
    assert cell["scaled"].__wrapped__.__name__ == "scaled"
    for scale in (2.0, 5.0):
        cell["scale"] = scale
        cell["scaled"](x)  # its shape is known from here on
        before = cell["step"].num_replayed
        found = [cell["step"](x * n).full() for n in range(8)]
        assert [each[0].item() for each in found] == [n * scale + 1 for n in range(8)]
        assert cell["step"].num_replayed > before


@pytest.mark.parametrize("size", [4, 5000], ids=["small", "large"])
def test_a_compiled_function_calls_others(mesh: Mesh, x: Any, size: int) -> None:
    array = numpy.ones(size)
    by_sum = monarch_nb.remote(lambda value: value * float(array.sum()))
    by_sum(x)  # its shape is known from here on

    @monarch_nb.compile
    def step(value: Any) -> Any:
        return by_sum(value) + 1

    found = [step(x * n).full() for n in range(8)]
    assert step.num_replayed > 0
    assert all(torch.equal(each, torch.full((2,), n * size + 1.0)) for n, each in enumerate(found))


def is_replayed_as(step: Any, x: Any, plain: Any) -> None:
    """Check that a compiled function gives what plain torch does, and is replayed in the end."""
    before = step.num_replayed
    for _ in range(8):
        assert torch.allclose(step(x).full(), plain(torch.ones(2)).float())
    assert step.num_replayed > before


MODEL = """
import torch, monarch_nb
from torch import nn
scale = 2.0
def helper(x):
    return x * scale
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
    def forward(self, x):
        return helper(self.layer(x))
plain = Model()
"""
IN_CELLS = {
    "a variable": "scale = 3.0",
    "a function": "def helper(x):\n    return x + scale",
    "a method": "Model.forward = lambda self, x: self.layer(x) - scale",
}


@pytest.mark.parametrize("what", IN_CELLS)
def test_a_compiled_function_sees_what_its_modules_methods_do(mesh: Mesh, x: Any, what: str) -> None:
    cell: dict[str, Any] = {"__name__": "__main__"}

    def run(source: str) -> None:
        exec(compile(source, f"<ipython-input-{len(source)}-0>", "exec"), cell)

    run(MODEL)
    model = monarch_nb.module_to_mesh(cell["plain"], mesh)

    @monarch_nb.compile
    def step(value: Any) -> Any:
        return model(value)

    for source in ("pass", IN_CELLS[what]):
        run(source)
        is_replayed_as(step, x, cell["plain"])


DATA = """
import numpy, torch
array, number, kinds, large = numpy.ones(3), numpy.float64(2.0), {"plus"}, numpy.zeros(5000)
items, numbers = [0.0] * 5000, set(range(5000))
def step(x):
    y = x * float(array[0]) * number + float(large.sum()) + sum(items) + len(numbers)
    return y + 1 if "plus" in kinds else y
"""
OF_DATA = {
    "an array": "array.fill(5)",
    "a number": "number = numpy.float64(3.0)",
    "a set": "kinds.clear()",
    "a large array": "large = numpy.ones(5000)",
    "an item of a large array": "large[4000] = 3",
    "an item of a large list": "items[4000] = 3.0",
    "an item of a large set": "numbers.remove(7)",
}


@pytest.mark.parametrize("what", OF_DATA)
def test_a_compiled_function_sees_arrays_and_sets(mesh: Mesh, x: Any, what: str) -> None:
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(DATA, "<ipython-input-7-0>", "exec"), cell)
    step = monarch_nb.compile(cell["step"])
    for source in ("pass", OF_DATA[what]):
        exec(source, cell)
        is_replayed_as(step, x, cell["step"])
