"""The row with which a rank describes a variable."""

from __future__ import annotations

from typing import TypedDict


class VariableRow(TypedDict, total=False):
    """A short description of a variable; fields that don't apply are left out.

    Attributes:
        type: name of its class.
        norm: of tensors and arrays of numbers, and of all parameters of a module.
        sharded: placements, if it's distributed.
        text: its value, if that is short.
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
