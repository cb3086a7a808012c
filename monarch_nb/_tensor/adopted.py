"""Plain tensors that were used with tensors of a mesh: each is sent to the ranks once, until it changes."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

from monarch_nb._rank.tensor.private import version_of
from monarch_nb._tensor.metadata import Grid
from monarch_nb._tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class _Sent:
    """The record of a plain tensor that was sent, and its form then: valid as long as the tensor is
    unchanged.
    """

    plain: weakref.ref[torch.Tensor]
    version: int
    made: Tensor

    def is_of(self, plain: torch.Tensor, grid: Grid) -> bool:
        """Return whether the record describes the tensor's present state."""
        is_same = version_of(plain) == self.version and self.plain() is plain
        return is_same and self.made.mesh_meta.grid is grid


class Adopted:
    """The plain tensors of one mesh that were sent, as long as they live."""

    def __init__(self) -> None:
        self._sent: dict[int, _Sent] = {}

    def find(self, plain: torch.Tensor, grid: Grid) -> Tensor | None:
        """Return the tensor of the mesh that a plain one was sent as; None if there's none, or it has changed
        since.
        """
        known = self._sent.get(id(plain))
        return known.made if known is not None and known.is_of(plain, grid) else None

    def add(self, plain: torch.Tensor, made: Tensor) -> None:
        """Remember what a plain tensor was sent as. One of inference mode doesn't say when it changes: it's
        sent anew each time.
        """
        if plain.is_inference():
            return
        number = id(plain)
        forgets = weakref.ref(plain, lambda _: self._sent.pop(number, None))
        self._sent[number] = _Sent(forgets, version_of(plain), made)

    def clear(self) -> None:
        """Forget all: the ranks don't have them any more."""
        self._sent.clear()
