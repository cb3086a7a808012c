"""Turns arrived answers into values, or into the error that folds their failures."""

from __future__ import annotations

from typing import Any

from monarch_nb._client.outcome import call_error
from monarch_nb._runtime.described import failures_of
from monarch_nb._shape import Shape
from monarch_nb._transport.pending import GatherReply, OneReply
from monarch_nb._wire.message import ERROR
from monarch_nb.actor.value_mesh import ValueMesh


def one_value(reply: OneReply, what: str) -> Any:
    """Return the value of a single answer, or raise its failure."""
    __tracebackhide__ = True  # IPython and pytest then show the user's line, not ours
    body = reply.body
    if body is not None and not body.flags & ERROR:
        return body.value()
    raise call_error(reply.transport, failures_of(reply), {}, 1, 0, what)


def value_mesh(gather: GatherReply, shape: Shape, what: str) -> ValueMesh[Any]:
    """Return all values at their points, or raise the failures with the good results on them."""
    __tracebackhide__ = True
    if not gather.failed:
        return ValueMesh(shape, [body.value() for body in gather.bodies if body is not None])
    results = {
        i: body.value() for i, body in enumerate(gather.bodies) if body is not None and not body.flags & ERROR
    }
    num_unfinished = len(gather.bodies) - len(results) - len(gather.failed)
    raise call_error(gather.transport, failures_of(gather), results, len(gather.bodies), num_unfinished, what)
