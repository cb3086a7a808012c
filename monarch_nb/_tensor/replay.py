"""A recording that can be replayed: the commands of a call are sent again by their number, and what the
program sees afterwards is as after a call: results, gradients, versions.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.utils import _pytree as pytree

from monarch_nb._tensor.layout import NOWHERE, Laid
from monarch_nb._tensor.metadata import Meta
from monarch_nb._tensor.pieces import Piece, pieces_of
from monarch_nb._tensor.reads import answer_of
from monarch_nb._tensor.recorded import Captured, Grad, Gradient, Made, Part, Read, Sent, Value
from monarch_nb._tensor.recorder import Recorder
from monarch_nb._tensor.slots import FULL, Handle
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.exceptions import MeshUsageError, SupervisionError


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
        read: number of the read that has given it, and which of its flat values it is; None if none has.
    """

    value: Value | None = None
    meta: Meta | None = None
    requires_grad: bool = False
    is_leaf: bool = True
    is_itself: bool = False
    other: Any = None
    argument: int = -1
    read: tuple[int, int] | None = None


class Recording:
    """A recorded call.

    Args:
        engine: engine whose commands these are.
        recorder: has recorded the call.
        results: what it returned, flat.
        structure: of the results.

    Attributes:
        stream: stream of the engine that it was recorded on; after a heal there's another one.
        path: values that were read and that may have decided what the call did.
        pieces: the parts between these.
    """

    def __init__(self, engine: Any, recorder: Recorder, results: Sequence[Result], structure: Any) -> None:
        self.engine, self.stream = engine, engine.stream
        engine.recordings.add(self)
        self.parts, self.entries = recorder.parts, tuple(recorder.entries)
        self.results, self.structure = tuple(results), structure
        kept = {g.value for p in self.parts for g in p.gradients} | {r.value for r in results}
        self.kept = {v for v in kept if isinstance(v, Made)}
        """Values that outlive the call: new gradients and results."""
        self.pieces = self._own_pieces = pieces_of(engine, self.parts, self.kept)
        self._num_shared = 0
        self.path = tuple(p.decides.answer for p in self.pieces if p.decides is not None)
        values = {v for p in self.parts for c in p.commands for v in c.inputs} | (kept - {None})
        values |= {p.read.value for p in self.parts if p.read is not None}
        self.sources: list[Any] = [v for v in values if not isinstance(v, Made)]
        plain = {v.plain for v in values if isinstance(v, Sent)}
        self._captured = [v for v in values | plain if isinstance(v, Captured)]
        self._fixed = recorder.fixed
        self.read_later = {v.leaf for v in values if isinstance(v, Gradient)}
        """Tensors whose gradients are used as they are when the call begins."""
        self.is_verified = False

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Return whether a call finds what the recorded one found."""
        return (
            self.engine.stream is self.stream
            and not self.engine.is_closed
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
        return self.engine.stream is not self.stream or not all(each.is_same() for each in self._captured)

    @property
    def deciding_parts(self) -> list[Part]:
        """Parts up to the last value that may decide what the call does."""
        return [part for piece in self.pieces if piece.decides is not None for part in piece.parts]

    def share(self, other: Recording) -> None:
        """Take the pieces of another recording of the function, as far as both have read the same."""
        shared = 0
        for mine, its in zip(self._own_pieces, other.pieces, strict=False):
            if mine.decides is None or its.decides is None or not mine.alive <= its.alive:
                break
            shared += 1
            if self.path[:shared] != other.path[:shared]:  # what comes next differs
                break
        if shared > self._num_shared:
            self._num_shared = shared
            self.pieces = (*other.pieces[:shared], *self._own_pieces[shared:])


class Replay:
    """A replay under way.

    Args:
        recordings: recordings that a call fits; the likeliest one first.
        leaves: the call's arguments, flat.

    Attributes:
        recording: the recording that is replayed.
    """

    def __init__(self, recordings: Sequence[Recording], leaves: Sequence[Any]) -> None:
        self.recording, self._leaves = recordings[0], leaves
        first = self.recording.pieces[0]
        self._recordings = [each for each in recordings if each.pieces[0] is first]
        self._engine = self.recording.engine
        self._found: dict[Value, Any] = {}
        self._slots: dict[Value, int] = {}
        self._made: dict[Value, Tensor] = {}
        self._read: list[Any] = []
        self._path: tuple[Any, ...] = ()

    def run(self) -> list[Any] | None:
        """Replay the commands; return the results, flat. None: a value was read with which no recording goes
        on, and everything is as it was before.
        """
        with self._sent_together():
            self._find()
            if self._is_over():
                return None
            # A tensor that was dropped has raised here, before anything has changed.
            before = self._before()
            self._free_gradients()
            for n in itertools.count():
                piece = self.recording.pieces[n]
                self._do(piece)
                if piece.decides is None:
                    return [self._result(each) for each in self.recording.results]
                if not self._choose(n + 1):
                    self._made.clear()
                    before.restore()
                    return None
        raise AssertionError

    def _is_over(self) -> bool:
        """Say whether the ranks have begun anew after a heal: then they don't know the recording."""
        return self._engine.stream is not self.recording.stream

    @contextmanager
    def _sent_together(self) -> Iterator[None]:
        with self._engine.stream.hold():
            self._engine.sends_soon = True
            try:
                yield
            finally:
                self._engine.sends_soon = False

    def _find(self) -> None:
        """Find what the commands take from outside, also plain tensors of the recording that goes on."""
        for recording in self._recordings:
            for each in recording.sources:
                is_late = isinstance(each, Sent) and recording is not self.recording
                if each not in self._found and not is_late:
                    self._add(each)

    def _add(self, value: Any) -> None:
        found = self._found[value] = value.find(self._leaves)
        if found is not None:
            self._slots[value] = found.mesh_handle.slot

    def _before(self) -> Before:
        """Return what a replay changes that may turn out not to be one."""
        decides = self.recording.pieces[0].decides is not None
        parts = [p for r in self._recordings for p in r.deciding_parts] if decides else []
        leaves = dict.fromkeys(each.leaf for part in parts for each in part.gradients)
        freed = {each.leaf for each in self._freed()}
        is_random = any(command.num_seeds for part in parts for command in part.commands)
        return Before([(leaf.find(self._leaves), leaf in freed) for leaf in leaves], is_random)

    def _freed(self) -> list[Grad]:
        """Return the gradients that the call replaces without reading them."""
        used = {leaf for recording in self._recordings for leaf in recording.read_later}
        return [each for each in self.recording.parts[0].gradients if each.leaf not in used]

    def _free_gradients(self) -> None:
        """Give up gradients that the call replaces without reading them, so that they don't take memory
        beside the new ones.
        """
        for each in self._freed():
            each.leaf.find(self._leaves).grad = None

    def _choose(self, number: int) -> bool:
        """Choose the recording that goes on as the values that were read want it, with a piece of this
        number; return whether there is one.
        """
        done = self.recording.pieces[:number]
        for each in self._recordings:
            if each.path[:number] == self._path and each.pieces[:number] == done:
                self.recording = each
                self._find()
                return True
        return False

    def _do(self, piece: Piece) -> None:
        piece.lay_out()
        for part, laid in zip(piece.parts, piece.laid, strict=True):
            if not laid.is_empty:
                self._send(laid)
            self._after(part)
            if part.read is not None:
                self._fetch(part.read)

    def _send(self, laid: Laid) -> None:
        engine, stream, slots = self._engine, self._engine.stream, self._slots
        if self._is_over():
            raise SupervisionError(
                "ranks were lost while a compiled function ran, and the mesh was healed since: call it again"
            )
        seeds = [float(torch.randint(1 << 53, ())) for _ in range(laid.num_seeds)]
        with stream.lock:
            if engine.slots.weight >= FULL and stream.drop():
                engine.places.add(NOWHERE)
            first = stream.count
            for value, at in laid.positions.items():
                handle = Handle(engine.slots, first + at, value.meta)
                self._made[value], slots[value] = Tensor(value.meta, handle), handle.slot
            engine.places.extend(laid.places)
            stream.replay(laid.part.number, [slots[v] for v in laid.values], seeds, len(laid.places))

    def _after(self, part: Part) -> None:
        """Do what Python would have done: versions, gradients, and the step of an optimiser."""
        changed = [t for t in (self._found[each] for each in part.versions) if t is not None]
        for each in part.gradients:
            gradient = None if each.value is None else self._tensor(each.value)
            each.leaf.find(self._leaves).grad = gradient
            changed += [gradient] * each.version
        if changed:
            increment_version(changed)
        if part.optimizer is not None:
            optimizer = part.optimizer()
            assert optimizer is not None
            optimizer.step()

    def _tensor(self, value: Value) -> Any:
        return self._made[value] if isinstance(value, Made) else self._found[value]

    def _fetch(self, read: Read) -> None:
        """Read a value as the function would."""
        tensor = self._tensor(read.value)
        if tensor is None and isinstance(read.value, Captured) and read.value.handle is not None:
            meta: Any = read.value.meta
            tensor = Tensor(meta, read.value.handle())  # type: ignore[arg-type]
        answers = self._engine.fetch(tensor, read.how)
        if read.convert is None:
            self._path = (*self._path, answer_of(answers))
            self._read.append(())
        else:
            value = read.convert(answers[tensor.mesh_meta.grid.ranks[0]])
            self._read.append(pytree.tree_leaves(value))

    def _result(self, result: Result) -> Any:
        if result.argument >= 0:
            return self._leaves[result.argument]
        if result.read is not None:
            number, leaf = result.read
            return self._read[number][leaf]
        if result.value is None:
            return result.other
        tensor = self._tensor(result.value)
        if result.is_itself:
            return tensor
        if tensor is None and isinstance(result.value, Captured) and result.value.handle is not None:
            return given_back(result.value.handle(), result)
        return given_back(tensor.mesh_handle, result)


class Before:
    """The state that a replay has found, to be set again.

    Args:
        tensors: tensors whose gradients the replay sets; for each whether it gives up the former gradient at
            once, since nothing uses its numbers.
        is_random: whether it draws random numbers.
    """

    def __init__(self, tensors: Sequence[tuple[torch.Tensor, bool]], is_random: bool) -> None:
        self._generator = torch.get_rng_state() if is_random else None
        self._gradients = [(tensor, _former(tensor.grad, is_freed)) for tensor, is_freed in tensors]

    def restore(self) -> None:
        """Set everything again."""
        for tensor, gradient in self._gradients:
            tensor.grad = gradient()
        if self._generator is not None:
            torch.set_rng_state(self._generator)


def _former(gradient: Tensor | None, is_freed: bool) -> Callable[[], Tensor | None]:
    """Return what gives a gradient later. One that was given up may be without numbers."""
    if gradient is None or not is_freed:
        return lambda: gradient
    ref, meta, slots = weakref.ref(gradient), gradient.mesh_meta, gradient.mesh_handle.slots

    def found() -> Tensor:
        former = ref()
        return Tensor(meta, Handle(slots, 0, meta)) if former is None else former

    return found


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
