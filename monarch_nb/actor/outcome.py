"""Turns arrived answers into values, or into the error that folds their failures."""

from __future__ import annotations

from typing import Any

from monarch_nb._client.outcome import call_error
from monarch_nb._runtime.described import failures_of
from monarch_nb._shape import Shape
from monarch_nb._transport.failure import message_of
from monarch_nb._transport.pending import Body, GatherReply, OneReply
from monarch_nb._wire.codec import CannotUnpickle
from monarch_nb._wire.message import ERROR
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.exceptions import MeshError


def one_value(reply: OneReply, what: str) -> Any:
    """Return the value of a single answer, or raise its failure."""
    __tracebackhide__ = True  # IPython and pytest then show the user's line, not ours
    body = reply.body
    if body is not None and not body.flags & ERROR:
        return _read(body, what)
    raise call_error(reply.transport, failures_of(reply), {}, 1, 0, what)


def value_mesh(gather: GatherReply, shape: Shape, what: str) -> ValueMesh[Any]:
    """Return all values at their points, or raise the failures with the good results on them."""
    __tracebackhide__ = True
    if not gather.failed:
        return ValueMesh(shape, [_read(body, what) for body in gather.bodies if body is not None])
    results = {
        i: _read_or_error(body, what)
        for i, body in enumerate(gather.bodies)
        if body is not None and not body.flags & ERROR
    }
    num_unfinished = len(gather.bodies) - len(results) - len(gather.failed)
    raise call_error(gather.transport, failures_of(gather), results, len(gather.bodies), num_unfinished, what)


def _read(body: Body, what: str) -> Any:
    """Return an answer's value.

    Raises:
        CannotUnpickle: if it can't be made here, with the user's frames that led to it.
    """
    __tracebackhide__ = True
    try:
        return body.value()
    except (MeshError, MemoryError):
        raise
    except Exception as error:  # unpickling runs the user's code
        reason = f"the answer can't be read here: {type(error).__name__}: {message_of(error)}"
        found = CannotUnpickle(what, f"{reason}. {_advice(error)}")
        raise found.with_traceback(error.__traceback__) from error


def _read_or_error(body: Body, what: str) -> Any:
    try:
        return _read(body, what)
    except CannotUnpickle as error:  # the failures of others are what's told
        return error


def _advice(error: Exception) -> str:
    if isinstance(error, ImportError | AttributeError):
        return (
            "Let this program have the module of its class, or return what needs none: numbers, text, dicts"
        )
    return "Its class can be pickled, but not made again; return what can, such as a dict of its values"
