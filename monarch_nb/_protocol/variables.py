"""The row in which a rank describes a variable."""

from __future__ import annotations

from typing import TypedDict


class VariableRow(TypedDict, total=False):
    """A variable in a few words; what it doesn't have isn't there.

    Attributes:
        type: name of its class.
        norm: of tensors and arrays of numbers, and of all parameters of a module.
        sharded: placements, if it's distributed.
        text: what it is, if that's short.
        digest: equal for equal content.
        repr, signature, doc, source: only where one asks for a single variable.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    norm: float | None
    sharded: str
    text: str
    digest: str
    repr: str
    signature: str
    doc: str
    source: str
