"""Computes gradients one at a time, and supports functions that define their own gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monarch_nb.exceptions import MeshUsageError


def grad_generator(
    roots: torch.Tensor | Sequence[torch.Tensor],
    with_respect_to: Sequence[torch.Tensor],
    grad_roots: Sequence[torch.Tensor] | None = None,
) -> Iterator[torch.Tensor | None]:
    """Yield the gradients of `roots` with respect to the given tensors, in order; None for tensors that the
    roots don't depend on.

    Nothing is computed before the first gradient is requested.

    Args:
        roots: one or several tensors of any shape; the gradient of a root with one element is 1 by default.
        grad_roots: the gradients of the roots, in the shapes of the roots.

    Example:
        >>> for gradient in monarch_nb.grad_generator(loss, list(model.parameters())):  # doctest: +SKIP
        ...     gradient.reduce_("gpus", "avg")
    """
    wanted = list(with_respect_to)
    for each in wanted:
        if not isinstance(each, torch.Tensor) or not each.requires_grad:
            raise MeshUsageError(
                "grad_generator is of tensors that require gradients; one of with_respect_to doesn't: "
                "x.requires_grad_()"
            )
    given = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    return _gradients(given, wanted, grad_roots)


def _gradients(roots: Any, wanted: Any, grad_roots: Any) -> Iterator[torch.Tensor | None]:
    yield from torch.autograd.grad(roots, wanted, grad_roots, allow_unused=True)


def grad_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that defines its own gradient: it returns its result (one or several tensors), and
    a function that takes the gradients of the result, and returns those of the tensors among its arguments,
    in order.

    Example:
        >>> @monarch_nb.grad_function                        # doctest: +SKIP
        ... def double(x):
        ...     return 2 * x, lambda gradient: 2 * gradient
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return _Own.apply(function, leaves, structure, *tensors)

    return call


class _Own(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], leaves: Any, structure: Any, *tensors: Any) -> Any:
        """Call the function; keep its gradient function."""
        rest = iter(tensors)
        args, kwargs = pytree.tree_unflatten(
            [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure
        )
        made = function(*args, **kwargs)
        if not isinstance(made, tuple) or len(made) != 2 or not callable(made[1]):
            raise MeshUsageError(
                "a function with @grad_function returns its result and a function of the gradient: "
                f"return y, backward; not {type(made).__name__}"
            )
        result, ctx.backward_of = made
        ctx.num_tensors = len(tensors)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Call the gradient function."""
        found = ctx.backward_of(*gradients)
        parts = tuple(found) if isinstance(found, (list, tuple)) else (found,)
        if len(parts) != ctx.num_tensors:
            raise MeshUsageError(
                f"the backward of a @grad_function returned {len(parts)} gradients for {ctx.num_tensors} "
                "tensors"
            )
        return None, None, None, *parts
