"""The subscribers of a session's events: methods of handles, which the session doesn't keep alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakMethod

E = TypeVar("E")


class Subscribers(Generic[E]):
    """The subscribers to one kind of event: methods of objects that are held weakly, at most one of each
    object. Thread-safe.

    Example:
        >>> class Handle:
        ...     def resized(self, size: int) -> None:
        ...         print("now", size)
        >>> handle, subscribers = Handle(), Subscribers[int]()
        >>> subscribers.subscribe(handle.resized); subscribers.publish(3)
        now 3
        >>> del handle; subscribers.publish(4)
    """

    def __init__(self) -> None:
        self._methods: dict[int, WeakMethod[Callable[[E], object]]] = {}

    def subscribe(self, method: Callable[[E], object]) -> None:
        """Register a bound method, which is called with each event as long as its object lives."""
        owner: Any = method
        key = id(owner.__self__)

        def forget(gone: WeakMethod[Callable[[E], object]]) -> None:
            if self._methods.get(key) is gone:
                del self._methods[key]

        self._methods[key] = WeakMethod(method, forget)

    def publish(self, event: E) -> None:
        """Call all subscribers with an event."""
        for reference in list(self._methods.values()):
            method = reference()
            if method is not None:
                method(event)
