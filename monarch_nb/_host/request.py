"""What a host process is asked and told, and who of it answers.

Its parts ("desks") answer requests by methods named `do_...` and take news by methods named `on_...`: what follows is the name that stands in the
message. A request that is answered at once returns the answer; one that isn't returns `LATER`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_nb._wire.message import Message

Request = Callable[[Message, dict[str, Any]], object]
News = Callable[[int, dict[str, Any]], None]
"""Gets who sent it, and the fields."""

LATER: Any = object()
"""Returned by a request that is answered later."""


class RequestError(Exception):
    """A request that can't be done; the text goes to whoever asked."""


class Reception:
    """Knows which desk is in charge of what.

    Example:
        >>> class Bell:
        ...     def do_ring(self, message, fields):
        ...         return fields["times"] * "ding "
        >>> reception = Reception()
        >>> reception.add(Bell())
        >>> reception.request("ring")(None, {"times": 2})
        'ding ding '
    """

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}
        self._news: dict[str, News] = {}

    def add(self, desk: object) -> None:
        """Let a desk answer what its methods are named for.

        Raises:
            ValueError: if another desk does so already.
        """
        for name in dir(type(desk)):
            for prefix, known in (("do_", self._requests), ("on_", self._news)):
                if name.startswith(prefix):
                    what = name.removeprefix(prefix)
                    if what in known:
                        raise ValueError(f"two desks answer {what!r}: {known[what]} and {type(desk).__name__}.{name}")
                    known[what] = getattr(desk, name)

    def request(self, name: str) -> Request:
        """Return what answers a request.

        Raises:
            RequestError: if nobody does.
        """
        found = self._requests.get(name)
        if found is None:
            raise RequestError(f"this host process knows no request {name!r}; is it of another version?")
        return found

    def news(self, name: str) -> News | None:
        """Return who takes news; None if nobody wants to know."""
        return self._news.get(name)
