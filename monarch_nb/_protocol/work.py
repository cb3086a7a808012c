"""The kinds of work that the main threads of ranks are asked to do. Arguments and answers are the user's, or
are made of such: encoded by whoever sends them, and opaque on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Work(StrEnum):
    """The kind of a piece of work. Its word stands in the message."""

    RUN = "run"
    """A cell, or a script."""
    EXECUTE = "execute"
    """A function."""
    BIND = "bind"
    CELL_VALUE = "cell_value"
    PROFILE = "profile"
    ENVIRONMENT = "environment"
    SET_ENVIRONMENT = "set_environment"
    POST_MORTEM = "post_mortem"
    START_RENDEZVOUS = "start_rendezvous"
    REMAKE_GROUP = "remake_group"
    PUSH = "push"
    PULL = "pull"
    VARS = "vars"
    LEAF_DIGESTS = "leaf_digests"
    LEAF_AT = "leaf_at"
    LOOK_AT = "look_at"
    COMPLETE = "complete"
    ACTORS = "actors"
    ACTOR = "actor"
    RELOAD = "reload"
    RELOAD_CLASS = "reload_class"


def does(work: Work) -> Callable[[F], F]:
    """Mark the method that does a work."""

    def mark(method: F) -> F:
        method.__does__ = work  # type: ignore[attr-defined]
        return method

    return mark


def works_of(worker: object) -> dict[str, Callable[[Any], Any]]:
    """Return the method for each kind of work, by its word.

    Raises:
        ValueError: if two do the same.
    """
    found: dict[str, Callable[[Any], Any]] = {}
    for name in dir(type(worker)):
        work = getattr(getattr(type(worker), name, None), "__does__", None)
        if work is not None:
            if work in found:
                raise ValueError(f"two do {work.value!r}: {found[work]} and {name}")
            found[work] = getattr(worker, name)
    return found
