"""Sequential workflows with waits: a generator yields what to wait for, and is sent the result."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
E = TypeVar("E")

GoOn = Callable[[Any], None]
Step = Callable[[GoOn], None]
"""Starts an operation, and calls its argument with the outcome, now or later, in the loop's thread."""

Workflow = Generator[Step, Any, T]


def run_workflow(workflow: Workflow[T], done: Callable[[T | Exception], None]) -> None:
    """Run a workflow; `done` is called with its result, or the exception that ended it.

    Example:
        >>> def double(n):
        ...     found = yield lambda go_on: go_on(n)
        ...     return 2 * found
        >>> run_workflow(double(21), print)
        42
    """

    def go_on(value: Any = None) -> None:
        try:
            step = workflow.send(value)
        except StopIteration as end:
            done(end.value)
        except Exception as error:
            done(error)
        else:
            step(go_on)

    go_on()


def carry_out(steps: Generator[E, Any, T], perform: Callable[[E], Workflow[Any]]) -> Workflow[T]:
    """Execute pure steps, which yield actions and are sent their results.

    Example:
        >>> def add():
        ...     return (yield 3) + (yield 4)
        >>> def double(n):
        ...     return (yield lambda go_on: go_on(2 * n))
        >>> run_workflow(carry_out(add(), double), print)
        14
    """
    outcome = None
    while True:
        try:
            effect = steps.send(outcome)
        except StopIteration as end:
            result: T = end.value
            return result
        outcome = yield from perform(effect)
