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

from monarch_nb._tensor.layout import NOWHERE, Laid, Layout
from monarch_nb._tensor.metadata import Meta
from monarch_nb._tensor.recorded import Captured, Grad, Gradient, Made, Part, Sent, Value
from monarch_nb._tensor.recorder import Recorder
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
        is_itself: whether it is the very tensor that the value is: an argument, or one from outside.
        other: a result that isn't a tensor of the mesh: the same in each replay.
        argument: number of the argument that is returned; -1 if it's none.
    """

    value: Value | None = None
    meta: Meta | None = None
    requires_grad: bool = False
    is_leaf: bool = True
    is_itself: bool = False
    other: Any = None
    argument: int = -1


class Recording:
    """A recorded call.

    Args:
        engine: engine whose commands these are.
        recorder: has recorded the call.
        results: what it returned, flat.
        structure: of the results.
    """

    def __init__(self, engine: Any, recorder: Recorder, results: Sequence[Result], structure: Any) -> None:
        self._engine, self._stream = engine, engine.stream
        engine.recordings.add(self)
        self.parts, self.entries = recorder.parts, tuple(recorder.entries)
        self.results, self.structure = tuple(results), structure
        kept = {g.value for p in self.parts for g in p.gradients} | {r.value for r in results}
        self.kept = {v for v in kept if isinstance(v, Made)}
        """Values that outlive the call: new gradients and results."""
        values = {v for p in self.parts for c in p.commands for v in c.inputs} | (kept - {None})
        self._sources: list[Any] = [v for v in values if not isinstance(v, Made)]
        plain = {v.plain for v in values if isinstance(v, Sent)}
        self._captured = [v for v in values | plain if isinstance(v, Captured)]
        self._fixed = recorder.fixed
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
            and all(map(self._is_at_its_place, range(len(leaves)), leaves))
            and all(p.optimizer is None or p.optimizer() is not None for p in self.parts)
        )

    def _is_at_its_place(self, number: int, leaf: Any) -> bool:
        """Return whether an argument is reached otherwise, too, just if it was in the recorded call."""
        if not isinstance(leaf, Tensor):
            return True
        fixed = self._fixed.get(number)
        handle = weakref.ref(leaf.mesh_handle)
        return fixed.handle is handle if fixed else all(each.handle is not handle for each in self._captured)

    @property
    def plans(self) -> set[int]:
        """The numbers of the plans that a replay needs."""
        return {command.plan.number for part in self.parts for command in part.commands}

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
            found: dict[Value, Any] = {each: each.find(leaves) for each in self._sources}
            # A tensor that was dropped raises here, before anything has changed.
            slots = {value: each.mesh_handle.slot for value, each in found.items() if each is not None}
            self._free_gradients(leaves)
            made: dict[Value, Tensor] = {}
            for part, laid in zip(self.parts, self._laid, strict=True):
                self._send(laid, slots, made)
                self._after(part, leaves, found, made)
            return [self._result(each, leaves, found, made) for each in self.results]

    def _lay_out(self) -> None:
        layout = Layout(self._engine.slots, self.parts, self.kept)
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

    def _send(self, laid: Laid, slots: dict[Value, int], made: dict[Value, Tensor]) -> None:
        engine, stream = self._engine, self._stream
        seeds = [float(torch.randint(1 << 53, ())) for _ in range(laid.num_seeds)]
        with stream.lock:
            if engine.slots.has_many_dropped() and stream.drop():
                engine.places.add(NOWHERE)
            first = stream.count
            for value, at in laid.positions.items():
                handle = Handle(engine.slots, first + at, value.meta)
                made[value], slots[value] = Tensor(value.meta, handle), handle.slot
            engine.places.extend(laid.places)
            stream.replay(laid.part.number, [slots[v] for v in laid.values], seeds, len(laid.places))

    def _after(
        self, part: Part, leaves: Sequence[Any], found: dict[Value, Any], made: dict[Value, Tensor]
    ) -> None:
        """Do what Python would have done: versions, gradients, and the step of an optimiser."""
        changed = [t for t in (found[each] for each in part.versions) if t is not None]
        for each in part.gradients:
            gradient = _gradient(each, found, made)
            each.leaf.find(leaves).grad = gradient
            changed += [gradient] * each.version
        if changed:
            increment_version(changed)
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
        if result.is_itself:
            return tensor
        if tensor is None and isinstance(result.value, Captured) and result.value.handle is not None:
            return given_back(result.value.handle(), result)
        return given_back(tensor.mesh_handle, result)


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


def given_back(handle: Any, result: Result) -> Tensor:
    """Return the tensor with a handle as the result of a compiled function: one that requires a gradient
    knows that it has no history.
    """
    assert result.meta is not None
    made = Tensor(result.meta, handle)
    if result.requires_grad and result.is_leaf:
        return made.requires_grad_()  # type: ignore[no-any-return]
    if not result.requires_grad:
        return made
    with torch.enable_grad():
        found: Tensor = _WithoutHistory.apply(_ANCHOR, made)
    return found


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
