"""Finds the handler of a message: methods are registered by `@handles`, one handler for each type in a
process.

A method that handles a type gets the message and its `Sender`. What it returns is the answer, unless that is
`LATER`. A method that handles a `Work` gets the message as it came: its body is made of values of the user's,
which only the method that needs them reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar, overload

from monarch_nb._protocol.base import NO_FIELDS, Event, Request, decode
from monarch_nb._protocol.work import Work


class Later:
    """The type of `LATER`, by which a handler says that the answer follows later."""


LATER: Final = Later()
"""Returned by a handler whose answer comes later."""


class Sender(NamedTuple):
    """The sender of a message.

    Attributes:
        proc: its proc id.
        ref: number under which it waits for an answer; 0: it doesn't wait.
        slot: position of the receiver among all receivers of this message.
    """

    proc: int
    ref: int = 0
    slot: int = 0


NOBODY = Sender(0)
"""The sender of requests that a process makes to itself."""

Kind = type[Request[Any]] | type[Event] | Work
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@overload
def handles(
    kind: type[Request[T]],
) -> Callable[[Callable[[Any, Any, Sender], T | Later]], Callable[[Any, Any, Sender], T | Later]]: ...
@overload
def handles(
    kind: type[Event],
) -> Callable[[Callable[[Any, Any, Sender], None]], Callable[[Any, Any, Sender], None]]: ...
@overload
def handles(kind: Work) -> Callable[[Callable[[Any, Any], T]], Callable[[Any, Any], T]]: ...
def handles(kind: Kind) -> Callable[[F], F]:
    """Mark the method that handles messages of a type; it returns an answer of the type that the request
    names, or the result of the work.
    """

    def mark(method: F) -> F:
        method.__handles__ = kind  # type: ignore[attr-defined]
        return method

    return mark


def handled_by(service: type) -> Iterator[tuple[Kind, str]]:
    """Yield the messages' types and kinds of work that a class handles, each with its method's name."""
    for name in dir(service):
        kind = getattr(getattr(service, name, None), "__handles__", None)
        if kind is not None:
            yield kind, name


class Handler(NamedTuple):
    """A handler of messages of one type, or of one kind of work."""

    kind: Kind
    method: Callable[..., Any]

    def __call__(self, payload: bytes | memoryview, sender: Sender) -> object:
        """Read a request or an event and handle it.

        Raises:
            Malformed: if the payload isn't of the type.
        """
        return self.method(decode(self.kind, payload or NO_FIELDS), sender)  # type: ignore[arg-type]


class Handlers:
    """The handlers of one process, by the names of their messages.

    Example:
        >>> from monarch_nb._protocol.base import encode
        >>> class Ring(Request[str], frozen=True):
        ...     times: int
        >>> class Bells:
        ...     @handles(Ring)
        ...     def do_ring(self, request: Ring, sender: Sender) -> str:
        ...         return request.times * "ding "
        >>> handlers = Handlers(Bells())
        >>> handlers.find("ring")(encode(Ring(2)), NOBODY)
        'ding ding '
    """

    def __init__(self, *services: object) -> None:
        self._handlers: dict[str, Handler] = {}
        for service in services:
            self.add(service)

    def add(self, service: object) -> None:
        """Let an object handle what its methods are marked for.

        Raises:
            ValueError: if another handles one of those types already.
        """
        for kind, name in handled_by(type(service)):
            known = self._handlers.get(kind.wire_name)
            if known is not None:
                raise ValueError(
                    f"two handle {kind.wire_name!r}: {known.method} and {type(service).__name__}.{name}"
                )
            self._handlers[kind.wire_name] = Handler(kind, getattr(service, name))

    def find(self, name: str) -> Handler | None:
        """Return the handler of messages of a name; None if there is none."""
        return self._handlers.get(name)

    def tell(self, event: Event, sender: Sender = NOBODY) -> None:
        """Handle an event, if anything here does."""
        found = self._handlers.get(event.wire_name)
        if found is not None:
            found.method(event, sender)

    def handle(self, message: Request[Any] | Event, sender: Sender = NOBODY) -> object:
        """Handle a message that is here already: this process asks itself."""
        return self._handlers[message.wire_name].method(message, sender)
