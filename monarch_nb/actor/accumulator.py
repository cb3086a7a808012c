"""Combines the answers of a mesh in the order of their arrival."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from monarch_nb.actor.endpoint import Endpoint
from monarch_nb.actor.future import Future
from monarch_nb.actor.outcome import value_mesh

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class Accumulator(Generic[P, R, A]):
    """A reduction over the answers of a call.

    Args:
        endpoint: the endpoint to call.
        identity: the initial value.
        combine: `combine(so_far, answer)`; answers come in rank order.

    Example:
        >>> total = Accumulator(counter.value, 0, lambda a, b: a + b)  # doctest: +SKIP
        >>> total.accumulate().get()                                   # doctest: +SKIP
    """

    def __init__(self, endpoint: Endpoint[P, R], identity: A, combine: Callable[[A, R], A]) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Call the endpoint on all actors; return a future of the combined value."""
        future = self._endpoint.call(*args, **kwargs)
        what, shape = self._endpoint.what, self._endpoint.shape

        def finish(pending: Any) -> A:
            total = self._identity
            for value in value_mesh(pending, shape, what).values():
                total = self._combine(total, value)
            return total

        return future.read_as(finish, what)
