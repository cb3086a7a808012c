"""A recording that can be replayed: the commands of a call are sent again by their number, and what the
program sees afterwards is as after a call: results, gradients, versions.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import increment_version

from monarch_nb._tensor.layout import Laid, Layout
from monarch_nb._tensor.metadata import Meta
from monarch_nb._tensor.recorded import Argument, Captured, Entry, Grad, Gradient, Made, Part, Sent, Value
from monarch_nb._tensor.slots import Handle
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.exceptions import MeshUsageError

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor among a call's results.

    Attributes:
        value: what it is; None for any other result.
        meta: its metadata.
        requires_grad, is_leaf: as torch's.
        other: a result that isn't a tensor of the mesh: the same in each replay.
        argument: number of the argument that is returned; -1 if it's none.
    """

    value: Value | None = None
    meta: Meta | None = None
    requires_grad: bool = False
    is_leaf: bool = True
    other: Any = None
    argument: int = -1


class Recording:
    """A recorded call.

    Args:
        engine: engine whose commands these are.
        parts: the commands.
        entries: what the call had found.
        results: what it returned, flat.
        structure: of the results.
    """

    def __init__(
        self, engine: Any, parts: Sequence[Part], entries: Sequence[Entry], results: Sequence[Result],
        structure: Any,
    ) -> None:  # fmt: skip
        self._engine, self._stream = engine, engine.stream
        self.parts, self.entries = parts, tuple(entries)
        self.results, self.structure = tuple(results), structure
        values = {v for p in parts for c in p.commands for v in c.inputs}
        self._sources = [v for v in values if not isinstance(v, Made)]
        self._captured = [v for v in values if isinstance(v, Captured)]
        self._captured += [v.plain for v in values if isinstance(v, Sent) and isinstance(v.plain, Captured)]
        kept = {g.value for p in parts for g in p.gradients} | {r.value for r in results}
        self._kept = {v for v in kept if isinstance(v, Made)}
        self._read_later = {v.leaf for v in values if isinstance(v, Gradient)}
        self._laid: list[Laid] = []
        self.is_verified = False

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Return whether a call finds what the recorded one found."""
        return (
            self._engine.stream is self._stream
            and not self._engine.is_closed
            and all(each.is_same() for each in self._captured)
            and all(each.is_as_before(leaves) for each in self.entries)
            and all(p.optimizer is None or p.optimizer() is not None for p in self.parts)
        )

    @property
    def is_dead(self) -> bool:
        """Whether it can't be replayed any more, because something that it captured is gone."""
        return self._engine.stream is not self._stream or not all(each.is_same() for each in self._captured)

    # --- replaying

    def replay(self, leaves: Sequence[Any]) -> Any:
        """Replay the commands for other arguments; return the results, flat."""
        if not self._laid:
            self._lay_out()
        with self._sent_together():
            found: dict[Value, Any] = {each: each.find(leaves) for each in self._sources}  # type: ignore[union-attr]
            self._free_gradients(leaves)
            made: dict[Value, Tensor] = {}
            for part, laid in zip(self.parts, self._laid, strict=True):
                self._send(laid, found, made)
                self._after(part, leaves, found, made)
            return [self._result(each, leaves, found, made) for each in self.results]

    def _lay_out(self) -> None:
        layout = Layout(self._engine.slots, self.parts, self._kept)
        self._laid = layout.laid([next(_numbers) for _ in self.parts])
        for each in self._laid:
            self._stream.define_recorded(each.part)
        numbers = [each.part.number for each in self._laid]
        weakref.finalize(self, _free, self._engine.slots, layout.own, self._stream, numbers)

    @contextmanager
    def _sent_together(self) -> Any:
        with self._stream.hold():
            self._engine.sends_soon = True
            try:
                yield
            finally:
                self._engine.sends_soon = False

    def _free_gradients(self, leaves: Sequence[Any]) -> None:
        """Give up gradients that the call replaces without reading them, so that they don't take memory
        beside the new ones.
        """
        for each in self.parts[0].gradients:
            if each.leaf not in self._read_later:
                each.leaf.find(leaves).grad = None

    def _send(self, laid: Laid, found: dict[Value, Any], made: dict[Value, Tensor]) -> None:
        engine, stream = self._engine, self._stream
        seeds = [float(torch.randint(1 << 53, ())) for _ in range(laid.num_seeds)]
        with stream.lock:
            if engine.slots.has_many_dropped() and stream.drop():
                engine.places.add(NOWHERE)
            first = stream.count
            for value in laid.positions:
                meta = value.meta  # type: ignore[union-attr]
                made[value] = Tensor(meta, Handle(engine.slots, first + laid.positions[value], meta.num_bytes))
            slots = [(made.get(v) if isinstance(v, Made) else found[v]).mesh_handle.slot for v in laid.values]
            engine.places.extend(laid.places)
            stream.replay(laid.part.number, slots, seeds, len(laid.places))

    def _after(
        self, part: Part, leaves: Sequence[Any], found: dict[Value, Any], made: dict[Value, Tensor]
    ) -> None:
        """Do what Python would have done: versions, gradients, and the step of an optimiser."""
        changed = [t for t in (leaf.find(leaves) for leaf in part.versions) if t is not None]
        if changed:
            increment_version(changed)
        for each in part.gradients:
            each.leaf.find(leaves).grad = _gradient(each, found, made)
        if part.optimizer is not None:
            optimizer = part.optimizer()
            assert optimizer is not None
            optimizer.step()

    def _result(
        self, result: Result, leaves: Sequence[Any], found: dict[Value, Any], made: dict[Value, Tensor]
    ) -> Any:
        if result.argument >= 0:
            return leaves[result.argument]
        if result.value is None:
            return result.other
        tensor = made[result.value] if isinstance(result.value, Made) else found[result.value]
        return given_back(tensor, result)


NOWHERE = (None, 0, "")


def _gradient(change: Grad, found: dict[Value, Any], made: dict[Value, Tensor]) -> Any:
    if change.value is None:
        return None
    return made[change.value] if isinstance(change.value, Made) else found[change.value]


def _free(slots: Any, own: Sequence[int], stream: Any, numbers: Sequence[int]) -> None:
    """Give back what a recording has on the ranks."""
    for slot in own:
        slots.drop(slot)
    for number in numbers:
        stream.forget_recorded(number)


def given_back(tensor: Tensor, result: Result) -> Tensor:
    """Return a tensor as the result of a compiled function: one that requires a gradient knows that it has
    no history.
    """
    if isinstance(result.value, (Argument, Captured)):
        return tensor
    assert result.meta is not None
    made = Tensor(result.meta, tensor.mesh_handle)
    if result.requires_grad and result.is_leaf:
        return made.requires_grad_()  # type: ignore[no-any-return]
    return _WithoutHistory.apply(_ANCHOR, made) if result.requires_grad else made  # type: ignore[no-any-return]


class _WithoutHistory(torch.autograd.Function):  # type: ignore[misc]
    """The history of a compiled function's result."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: Tensor) -> Tensor:
        """Return a tensor that requires a gradient."""
        return Tensor(tensor.mesh_meta, tensor.mesh_handle)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Raise an error: the history ends here.

        Raises:
            MeshUsageError: always.
        """
        raise MeshUsageError(
            "backward() went back to a result of a compiled function, which has no history outside: call "
            "backward() in the function, or return x.detach()"
        )


_ANCHOR = torch.zeros((), requires_grad=True)
