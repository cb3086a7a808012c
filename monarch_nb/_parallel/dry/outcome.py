"""The outcome of a dry run: what a forward returns and costs, layers that mix rows, what it can't follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from monarch_nb._rank.tensor.inside import Template, is_constant
from monarch_nb._tensor.place import Place


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape and dtype of a tensor, without values."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.size)}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A layer whose result for one row depends on other rows of the batch.

    Attributes:
        path: path of the layer.
        kind: class of the layer.
        op: the operation that mixes rows.
        reason: the reason in words.
        place: line of the user's code.
        num_bytes: bytes that every rank has to receive from the others, per forward.
    """

    path: str
    kind: str
    op: str
    reason: str
    place: Place
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Out:
    """An output tensor of a dry run.

    Attributes:
        shape: shape of the whole tensor.
        layout: layout over the data axis: Shard(0), Replicate or Partial.
        wants_gradient: whether it has an autograd history.
    """

    shape: Shape
    layout: Any
    wants_gradient: bool


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of a dry run: everything known about a module's forward.

    Attributes:
        outputs: its tensors, flat, and `structure` and `leaves` of what it returns.
        findings: layers that mix rows of the batch.
        used: names of parameters that contribute to the result.
        num_flops: floating-point operations of one rank's forward.
        saved_bytes: bytes that one rank keeps for the backward.
        counts_rows: whether a loss is the mean over rows that count: ranks have to add these up.
        assigned: names of buffers that are replaced by other tensors.
    """

    outputs: tuple[Out, ...]
    leaves: tuple[Any, ...]
    structure: Any
    findings: tuple[Finding, ...]
    used: frozenset[str]
    num_flops: int = 0
    saved_bytes: int = 0
    counts_rows: bool = False
    assigned: tuple[str, ...] = ()

    @property
    def has_objects(self) -> bool:
        """Whether the result has objects with tensors, which layers get and change in other ways than by
        their own results.
        """
        return any(isinstance(each, Template) for each in self.leaves)


class CantFollow(Exception):
    """The error of a forward that can't be followed without values; its text says what prevents that."""


class Found(Exception):
    """The signal that a layer mixing rows was found; the dry run is repeated with that layer on the whole
    batch.
    """

    def __init__(self, path: str, op: str, reason: str, place: Place) -> None:
        super().__init__(reason)
        self.path, self.op, self.reason, self.place = path, op, reason, place


class LooksAcross(Exception):
    """The error of a layer that mixes rows of the batch without permission.

    Attributes:
        finding: the layer, and where it mixes rows.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.reason)
        self.finding = finding


class LocalMismatch(Exception):
    """The error of an operation that one rank can't do on its part, though one process can on the whole
    batch.

    Attributes:
        path: path of the layer, `op` its operation, `place` its line.
        inputs: the operation's tensors: name, for a parameter, and shape on one rank.
        error: torch's message.
    """

    def __init__(
        self, path: str, op: str, place: Place, inputs: Sequence[tuple[str, Shape]], error: Exception
    ) -> None:
        super().__init__(str(error))
        self.path, self.op, self.place, self.inputs, self.error = path, op, place, tuple(inputs), error


_Hole: Any = object()


def hole(leaf: Any) -> Any:
    """Return what stands for a leaf of a result.

    Raises:
        CantFollow: if it holds tensors that can't be replaced.
    """
    if isinstance(leaf, torch.Tensor):
        return _Hole
    if is_constant(leaf):
        return leaf
    made = Template(leaf)
    try:
        made.filled(made.marks)
    except Exception as error:
        raise CantFollow(f"it returns a {type(leaf).__name__}, which can't be copied: {error}") from None
    return made


def filled(leaf: Any, parts: Iterator[Any]) -> Any:
    """Return a leaf of a result with the next tensors in place of what stands for them."""
    if leaf is _Hole:
        return next(parts)
    return leaf.filled(parts) if isinstance(leaf, Template) else leaf
