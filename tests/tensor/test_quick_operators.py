"""Arithmetic operators that don't go through torch: the same numbers, and torch sees them where it must."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import monarch_nb
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import WrongTensor


def method(name: str) -> Callable[[Any, Any], Any]:
    """Return what calls a method of its first argument."""
    return lambda x, y: getattr(x, name)(y)


ARITHMETIC = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    *map(method, ("add", "sub", "mul", "div")),
)
OPERATORS = (*ARITHMETIC, operator.matmul, method("matmul"))
TIMES = 3
"""The first time makes the plan, the second and third use it."""


@contextmanager
def nothing_dispatched() -> Iterator[None]:
    """Fail if an operation on a tensor of a mesh goes through torch."""

    def refuse(cls: type, func: Any, *_: Any) -> Any:
        raise AssertionError(f"{func} went through torch")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "__torch_dispatch__", classmethod(refuse))
        yield


def laid_out(mesh: Mesh, *values: torch.Tensor) -> list[Any]:
    return [monarch_nb.distribute(each, mesh, ["data_parallel", None]) for each in values]


@pytest.mark.parametrize(
    ("operate", "other"),
    [
        *[(each, torch.rand(4, 4) + 1) for each in OPERATORS],
        *[(each, torch.rand(4, 4, dtype=torch.float64) + 1) for each in ARITHMETIC],
        *[(each, number) for each in ARITHMETIC for number in (2.5, 3)],
        (operator.add, True),
    ],
)
def test_numbers_are_torchs(mesh: Mesh, operate: Callable[[Any, Any], Any], other: Any) -> None:
    plain = torch.rand(4, 4) + 1
    wanted = operate(plain, other)
    (x,) = laid_out(mesh, plain)
    (y,) = laid_out(mesh, other) if isinstance(other, torch.Tensor) else (other,)
    for _ in range(TIMES):
        found = operate(x, y)
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found.full(), wanted)


@pytest.mark.parametrize("operate", OPERATORS)
def test_a_known_operation_does_not_go_through_torch(mesh: Mesh, operate: Callable[[Any, Any], Any]) -> None:
    x, y = laid_out(mesh, torch.rand(4, 4) + 1, torch.rand(4, 4) + 1)
    operate(x, y)
    with nothing_dispatched():
        found = operate(x, y)
    torch.testing.assert_close(found.full(), operate(x.full(), y.full()))


def test_arguments_by_name(mesh: Mesh) -> None:
    x, y = laid_out(mesh, torch.rand(4, 4) + 1, torch.rand(4, 4) + 1)
    for _ in range(TIMES):
        assert torch.equal(x.add(y, alpha=2).full(), x.full().add(y.full(), alpha=2))
        assert torch.equal(
            x.div(y, rounding_mode="floor").full(), x.full().div(y.full(), rounding_mode="floor")
        )
        assert torch.equal(x.mul(other=y).full(), x.full() * y.full())


def test_numbers_on_the_left(mesh: Mesh) -> None:
    (x,) = laid_out(mesh, torch.arange(16.0).view(4, 4))
    for _ in range(TIMES):
        assert torch.equal((2.5 * x).full(), 2.5 * x.full())
        assert torch.equal((7 + x).full(), 7 + x.full())
        assert torch.equal((1 - x).full(), 1 - x.full())


def test_each_float_and_each_integer_is_its_own(mesh: Mesh) -> None:
    (x,) = laid_out(mesh, torch.arange(16).view(4, 4))
    for number in (1.5, 2.5, 1, 2, 1.5, 1, True):
        assert torch.equal((x * number).full(), x.full() * number), number
        assert (x * number).dtype == (x.full() * number).dtype, number


def test_gradients_are_kept(mesh: Mesh) -> None:
    x, y = laid_out(mesh, torch.rand(4, 4), torch.rand(4, 4))
    weight = torch.nn.Parameter(y)
    for _ in range(TIMES):
        assert not (x * y).requires_grad
        with torch.no_grad():
            assert not (x * weight).requires_grad
        weight.grad = None
        product = x * weight
        assert product.requires_grad
        product.sum().backward()
        torch.testing.assert_close(weight.grad.full(), x.full())


def test_modes_of_torch_see_them(mesh: Mesh) -> None:
    class OfFunctions(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append("function")
            return func(*args, **(kwargs or {}))

    class OfDispatch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append("dispatch")
            return func(*args, **(kwargs or {}))

    x, y = laid_out(mesh, torch.rand(4, 4), torch.rand(4, 4))
    _ = x + y
    seen: list[str] = []
    with OfDispatch():
        _ = x + y
    assert seen == ["dispatch"]
    with OfFunctions():
        _ = x + y
    assert seen == ["dispatch", "function"]


def test_autocast_is_obeyed(mesh: Mesh) -> None:
    x, y = laid_out(mesh, torch.rand(4, 4), torch.rand(4, 4))
    for cast in (nullcontext(), torch.autocast("cpu", torch.bfloat16), nullcontext()):
        with cast:
            wanted = (x.full() @ y.full()).dtype
            assert (x @ y).dtype == wanted


def test_what_cannot_be_is_refused_as_ever(mesh: Mesh) -> None:
    x, y = laid_out(mesh, torch.rand(4, 4), torch.rand(4, 4))
    for _ in range(TIMES):
        _ = x + y
        with pytest.raises(RuntimeError, match="broadcast"):
            _ = x + laid_out(mesh, torch.rand(4, 3))[0]
        with pytest.raises(TypeError):
            _ = x + "y"
    y.drop()
    with pytest.raises(WrongTensor, match="DROPPED"):
        _ = x + y


def test_the_line_is_known_for_errors(mesh: Mesh) -> None:
    (x,) = laid_out(mesh, torch.ones(4, 4))
    for _ in range(TIMES):
        total = x + x
        line = sys._getframe().f_lineno - 1
        place = total.engine.places.of(total.mesh_handle.seq, total.engine.stream.count)
        assert place is not None
        assert (place.code, place.line) == (sys._getframe().f_code, line)


VIEWS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x.view(4, 1, 4),
    lambda x: x.view(4, 4, 1),
    lambda x: x.view(1, 4, 4),
    lambda x: x.transpose(0, 1),
    lambda x: x.select(0, 1),
    lambda x: x.select(1, 0),
    lambda x: x.T,
    lambda x: x.permute(0, 1),
    lambda x: x[:, 1:3],
    lambda x: x[:, 1:],
    lambda x: x[:, ::2],
    lambda x: x.unsqueeze(0),
    lambda x: x.unsqueeze(1),
    lambda x: x.cumsum(0),
    lambda x: x.cumsum(1),
    lambda x: x.argsort(1, True),
    lambda x: x.argsort(1, False),
    lambda x: x.split(2, 1)[1],
    lambda x: x.split([1, 3], 1)[1],
    lambda x: x.repeat(1, 2),
    lambda x: x.repeat(2, 1),
)


def test_operations_are_told_apart_by_their_numbers(mesh: Mesh) -> None:
    """They have plans of their own, though nothing but numbers distinguishes them."""
    value = torch.rand(4, 4)
    (one,) = laid_out(mesh, value)
    (other,) = laid_out(mesh, value.double())
    with torch.no_grad():
        for _ in range(TIMES):
            for view in VIEWS:
                for mine, plain in ((one, value), (other, value.double())):
                    found = view(mine).full()
                    assert found.dtype == view(plain).dtype
                    assert torch.equal(found, view(plain))


@pytest.mark.parametrize("dim", [(), (0,), (1,), (-1,)], ids=str)
def test_lists_of_tensors(mesh: Mesh, dim: tuple[int, ...]) -> None:
    """`cat` and `stack` of what was joined before, of another number, of plain ones among them, of wrong
    ones.
    """
    one, two = torch.rand(4, 4), torch.rand(4, 4)
    ours = laid_out(mesh, one, two)
    for _ in range(TIMES):
        assert torch.cat(ours, *dim).full().equal(torch.cat([one, two], *dim))
        assert torch.stack(ours, *dim).full().equal(torch.stack([one, two], *dim))
        assert torch.cat([*ours, ours[0]], *dim).full().equal(torch.cat([one, two, one], *dim))
        assert torch.cat([ours[0], two], *dim).full().equal(torch.cat([one, two], *dim))
        for found, root in zip(torch._foreach_sqrt(ours), torch._foreach_sqrt([one, two]), strict=True):
            assert found.full().equal(root)
        for found, sum_ in zip(torch._foreach_add(ours, 1), (one + 1, two + 1), strict=True):
            assert found.full().equal(sum_)
    with pytest.raises(Exception, match="Dimension out of range"):
        torch.cat(ours, 5)
