"""The base types of messages: a request, its answer, an event.

Each is a frozen `msgspec.Struct`: fields have types, and what arrives is checked against them. On the wire
it's msgpack, a map of its fields: no pickle, so that reading a control message never runs code. A value of
the user's (an argument, a variable, an exception) stays what the sender has encoded: opaque bytes in a field.

A message's name on the wire is its class' in snake case: `RunCell` is `run_cell`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from monarch_nb._protocol.readers import reader_of

__all__ = ["NO_FIELDS", "Event", "Malformed", "Plain", "Record", "Request", "decode", "encode"]

T = TypeVar("T")
AnswerT = TypeVar("AnswerT", covariant=True)

Plain = Any
"""Values that JSON can represent: None, bool, int, float, str, lists and dicts of these. For content that
this package doesn't define.
"""


NO_FIELDS: Final = b"\x80"
"""An empty map: the payload of a message without fields."""


class Malformed(ValueError):
    """The error of a message whose fields don't fit its type."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of a record inside a message, or of an answer."""


class _Named(Record, frozen=True):
    """The base of messages of their own; the class gives the name in the message's header."""

    wire_name: ClassVar[str]

    def __init_subclass__(cls, **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.wire_name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


class Request(_Named, Generic[AnswerT], frozen=True):
    """The base of requests to another process; `AnswerT` is the type of the answer.

    Example:
        >>> class Add(Request[int], frozen=True):
        ...     numbers: tuple[int, ...]
        >>> Add.wire_name, decode(Add, encode(Add((1, 2))))
        ('add', Add(numbers=(1, 2)))
    """

    @classmethod
    def answer_type(cls) -> Any:
        """Return the type of the answer."""
        return vars(cls)["__orig_bases__"][0].__args__[0]


class Event(_Named, frozen=True):
    """The base of events: messages that tell a process what has happened, and have no answer."""

    known: ClassVar[dict[str, type[Event]]] = {}
    """All event types that this process has imported, by their names on the wire."""

    def __init_subclass__(cls, **config: Any) -> None:
        super().__init_subclass__(**config)
        Event.known[cls.wire_name] = cls


def encode(value: object) -> bytes:
    """Return a message, or an answer, as bytes.

    Raises:
        TypeError: if it has something in it that is neither plain data nor one of the types of this package.
    """
    try:
        return _encode(value)
    except UnicodeEncodeError:
        tree = msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_plain_number)
        return _HAS_WRAPPED + _encode(_wrapped(tree))


def decode(kind: type[T], data: bytes | memoryview) -> T:
    """Return the message, or the answer, that `encode` has made `data` of.

    Raises:
        Malformed: naming the field that isn't as the type says.
    """
    try:
        reader = reader_of(kind)
        if data[:1] == _HAS_WRAPPED:
            return msgspec.convert(_unwrapped(msgspec.msgpack.decode(data[1:])), kind)
        found: T = reader.decode(data)
        return found
    except (msgspec.MsgspecError, ValueError) as error:
        name = getattr(kind, "wire_name", getattr(kind, "__name__", str(kind)))
        raise Malformed(f"not a {name!r} as this version knows it: {error}") from None


def _plain_number(value: object) -> object:
    """Return a number of another library (numpy's, torch's) as one of Python's."""
    if hasattr(value, "__index__"):
        return value.__index__()
    if isinstance(value, float) or hasattr(value, "__float__"):
        return float(value)
    raise TypeError(f"a {type(value).__name__} can't stand in a control message")


def _wrapped(value: Any) -> Any:
    """Return plain data with its text as bytes, which may be any."""
    if isinstance(value, str):
        return b"t" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, Mapping):
        return {_wrapped(k): _wrapped(v) for k, v in value.items()}
    return [_wrapped(each) for each in value] if isinstance(value, list | tuple) else value


def _unwrapped(value: Any) -> Any:
    """Return the plain data that was given to `_wrapped`."""
    if isinstance(value, bytes):
        return value[1:].decode("utf-8", "surrogatepass") if value[:1] == b"t" else value[1:]
    if isinstance(value, dict):
        return {_unwrapped(k): _unwrapped(v) for k, v in value.items()}
    return [_unwrapped(each) for each in value] if isinstance(value, list) else value


# File names that aren't UTF-8 have lone surrogates in Python, which msgpack's text can't represent. A message
# with such text begins with a byte that no msgpack begins with.
_HAS_WRAPPED: Final = b"\xc1"
_encode = msgspec.msgpack.Encoder(enc_hook=_plain_number).encode
