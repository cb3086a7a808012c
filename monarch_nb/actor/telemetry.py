"""Spans and meters of the user's program. Spans are recorded in the profiles of cells, and in OpenTelemetry's
traces where a program uses that.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar, overload

from monarch_nb._wire.loaded import loaded
from monarch_nb.actor.context import context

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def span(name: str) -> Iterator[None]:
    """Record the block as a span of a name, in `%%mesh --profile` and other profiles of torch, and in
    OpenTelemetry's trace, if the process has imported it.

    Example:
        >>> with span("load"):
        ...     pass
    """
    with ExitStack() as stack:
        torch = loaded("torch")
        if torch is not None:
            stack.enter_context(torch.profiler.record_function(name))
        trace = sys.modules.get("opentelemetry.trace")
        if trace is not None:
            attributes = {"actor": context().actor_instance.name}
            stack.enter_context(
                trace.get_tracer("monarch_nb").start_as_current_span(name, attributes=attributes)
            )
        yield


@overload
def traced(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def traced(*, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def traced(function: Callable[..., Any] | None = None, /, *, name: str = "") -> Callable[..., Any]:
    """Run each call of a function, sync or async, in a span of its name.

    Example:
        >>> @traced(name="twice")
        ... def double(x):
        ...     return 2 * x
        >>> double(3)
        6
    """
    if function is None:
        return functools.partial(_traced, name=name)
    return _traced(function, name=name)


def _traced(function: Callable[..., Any], *, name: str) -> Callable[..., Any]:
    label = name or function.__name__
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with span(label):
                return await function(*args, **kwargs)

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with span(label):
            return function(*args, **kwargs)

    return call


def get_meter() -> Any:
    """Return OpenTelemetry's meter of this process: its counters and histograms go where the program's
    provider sends them.

    Raises:
        ImportError: if OpenTelemetry isn't installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError:
        raise ImportError(
            "get_meter() gives OpenTelemetry's meter, which isn't installed: pip install "
            "opentelemetry-api. What ranks do is on /metrics of the Jupyter server without it"
        ) from None
    return metrics.get_meter("monarch_nb")
