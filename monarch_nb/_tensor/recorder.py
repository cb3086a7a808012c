"""Records the commands of one call, while they are sent as ever."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any, NoReturn

import torch

from monarch_nb._rank.tensor.private import version_of
from monarch_nb._rank.tensor.protocol import FetchFrom
from monarch_nb._tensor.metadata import Meta
from monarch_nb._tensor.place import Place, users_frame
from monarch_nb._tensor.plan import Plan
from monarch_nb._tensor.reads import Convert, Given, answer_of, given_by
from monarch_nb._tensor.recorded import (
    Argument,
    Captured,
    Entry,
    Grad,
    Gradient,
    Leaf,
    Made,
    Part,
    Read,
    Recorded,
    Sent,
    Value,
)  # fmt: skip
from monarch_nb._tensor.tensor import Tensor, is_tensor
from monarch_nb.exceptions import MeshUsageError, WrongTensor


class Recorder:
    """The recording of one call under way.

    Args:
        engine: engine whose commands are recorded.
        leaves: the flat arguments of the call.
        known: tensors that the call may use, found by `reach` and by earlier recordings.
        caller: code that calls the function.

    Attributes:
        parts: what was recorded.
        entries: tensors whose gradients are known from the begin on.
        unknown: tensors that turned out to need an entry, too: the next recording has them.
        fixed: arguments that the function also reaches otherwise, by their number.
        is_paused: whether an optimiser takes a step that isn't recorded.
        given: values that were read, and that the function can only return.
        shown: where numbers of a tensor were made text; None if they weren't.
    """

    def __init__(
        self, engine: Any, leaves: Sequence[Any], known: Iterable[Tensor], caller: CodeType | None = None
    ) -> None:
        self._engine = engine
        self._caller = caller
        self.given: list[Given] = []
        self.shown: Place | None = None
        self._leaves = leaves
        self.parts = [Part()]
        self.entries: list[Entry] = []
        self.unknown: list[Tensor] = []
        self.fixed: dict[int, Captured] = {}
        self.is_paused = False
        self.is_constant: Callable[[torch.Tensor], bool] = lambda _: False
        """Whether the call has made a plain tensor, of nothing but constants; set by `Watch`."""
        self.take_for_constant: Callable[[torch.Tensor], None] = lambda _: None
        """Is told of plain tensors that are the same in each replay; set by `Watch`."""
        self._num_made = 0
        self._values: dict[int, Value] = {}
        self._parcels: list[Any] = []
        self._touched: dict[Leaf | Gradient, tuple[Any, int]] = {}
        self._plain = {
            id(x): n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor) and not is_tensor(x)
        }
        ours = [x for x in known if self._has(x) and not x.dropped]
        self._bound = [(weakref.ref(x), weakref.ref(x.mesh_handle)) for x in [*leaves, *ours] if self._has(x)]
        slots = {x.mesh_handle.slot for x in ours}
        for n, each in enumerate(leaves):
            if self._has(each):
                if each.mesh_handle.slot in slots:
                    self.fixed[n] = Captured(each)
                else:
                    self._enter(Argument(n), each)
        for each in ours:
            self._enter(Captured(each), each)

    def _has(self, value: Any) -> bool:
        return is_tensor(value) and value.mesh_handle.slots is self._engine.slots

    def _enter(self, leaf: Leaf, tensor: Tensor) -> None:
        """Record what the call finds of a tensor."""
        is_new = self._values.setdefault(tensor.mesh_handle.slot, leaf) is leaf
        if not is_new or not is_leaf(tensor):
            return
        self.entries.append(Entry(leaf, None if tensor.grad is None else tensor.grad.mesh_meta))
        if tensor.grad is not None:
            self._values.setdefault(tensor.grad.mesh_handle.slot, Gradient(leaf))

    # --- called by the engine

    def command(
        self, plan: Plan, tensors: Sequence[Tensor], scalars: Sequence[float], slots: Sequence[int]
    ) -> None:
        """Record a command that was just added to the stream.

        Args:
            slots: of its new values.
        """
        if self.is_paused:
            for slot in slots:
                self._values.pop(slot, None)
            return
        inputs = tuple(map(self._input, tensors))
        metas = [each for each in plan.outputs if isinstance(each, Meta)]
        outputs = tuple(Made(self._num_made + n, meta) for n, meta in enumerate(metas))
        self._num_made += len(outputs)
        self._values.update(zip(slots, outputs, strict=True))
        floats = tuple(scalars[:-1] if plan.is_random else scalars)
        parcels, self._parcels = tuple(self._parcels), []
        self.parts[-1].commands.append(
            Recorded(plan, inputs, outputs, floats, self._engine.places.last, parcels)
        )

    def _input(self, tensor: Tensor) -> Value:
        value = self._values.get(tensor.mesh_handle.slot)
        if value is None:
            value = self.value_of(tensor)
            if is_leaf(tensor):
                self.unknown.append(tensor)
        is_outside = isinstance(value, (Argument, Captured))
        if is_outside and tensor.grad_fn is not None and torch.is_grad_enabled():
            self.refuse(
                "uses a tensor from outside with a history of its own, which a replay can't go back through: "
                "pass x.detach()"
            )
        if isinstance(value, (Argument, Captured, Gradient)):
            self._touched.setdefault(value, (weakref.ref(tensor), version_of(tensor)))
        return value

    def parcel(self, plain: Any) -> None:
        """Record the plain value that the next command sends; what the call hasn't made isn't kept."""
        if not self.is_paused:
            all_of = plain if isinstance(plain, list) else [plain]
            kept = [p.detach().clone() if p is not None and self.is_constant(p) else None for p in all_of]
            self._parcels.append(kept if isinstance(plain, list) else kept[0])

    def sent(self, plain: Any, made: Tensor, *, is_adopted: bool = False, maps: bool = False) -> None:
        """Record that a plain tensor, or a list with one for each rank, was sent, or had been before."""
        if self.is_paused:
            return
        if isinstance(plain, list):
            if not all(p is None or self.is_constant(p) for p in plain):
                self.refuse("sends a list of plain tensors: distribute them before the call")
            return
        if self.is_constant(plain):
            return
        number = self._plain.get(id(plain))
        of: Leaf = Captured(plain) if number is None else Argument(number)
        slot = made.mesh_handle.slot
        before = self._values.get(slot)
        commands = self.parts[-1].commands
        if isinstance(before, Made) and commands and commands[-1].outputs == (before,):
            commands.pop()  # a replay sends the tensor of its own call
            self._num_made -= 1
        meta = made.mesh_meta
        self._values[slot] = Sent(of, is_adopted, meta.grid, meta.placements, maps)

    def needs(self) -> None:
        """Hear that a value of the mesh is needed in a way that isn't recorded.

        Raises:
            MeshUsageError: always, but in the step of an optimiser.
        """
        if not self.is_paused:
            self.refuse(
                "needs a value of the mesh here in a way that a replay can't repeat: return the tensor, and "
                "use it after the call; torch.where(condition, a, b) chooses on the ranks"
            )

    def reads(self, tensor: Tensor, how: FetchFrom, fetch: Callable[[], list[Any]]) -> list[Any]:
        """Read a value of the mesh, and record that. A part ends there.

        Args:
            fetch: reads it.

        Raises:
            MeshUsageError: if what's asked for isn't a value, but a shape that depends on values.
        """
        if self.is_paused:
            return fetch()
        if how == "describe":
            self.needs()
        self.end_part()
        place = (*users_frame(), self._engine.module, "")
        read = Read(self.value_of(tensor), how, place=place, alive=frozenset(self._living()))
        self.parts[-1].read = read
        self.parts.append(Part())
        with self._looking_away():
            found = fetch()
        read.answer = answer_of(found)
        for each in found:
            if isinstance(each, torch.Tensor):
                self.take_for_constant(each)
        return found

    def gave(self, value: Any, convert: Convert, frame: Any) -> None:
        """Hear which value of Python's a method of the tensor has made of what was read last.

        Args:
            frame: of the method.
        """
        if self.is_paused:
            return
        found = given_by(len(self.read_parts) - 1, value, frame, self._caller)
        if found is not None:
            self.given.append(found)
            read = self.read_parts[-1].read
            assert read is not None
            read.convert = convert

    @contextmanager
    def shows(self) -> Iterator[bool]:
        """Hear that numbers of a tensor are made text in a block, which a replay wouldn't do. It gets whether
        they can be had.
        """
        if not self.is_paused and self.shown is None:
            self.shown = Place(*users_frame(), self._engine.module)
        with self._looking_away():
            yield True

    @contextmanager
    def _looking_away(self) -> Iterator[None]:
        """Record nothing within the block: it isn't the function's own."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    @property
    def read_parts(self) -> list[Part]:
        """Parts after which a value is read."""
        return [part for part in self.parts if part.read is not None]

    def refuse(self, reason: str) -> NoReturn:
        """Raise an error that names the user's line.

        Raises:
            MeshUsageError: always.
        """
        place = Place(*users_frame(), self._engine.module)
        raise MeshUsageError(
            f"a compiled function {reason}\n  {place}" if str(place) else f"a compiled function {reason}"
        )

    # --- the end of a part

    def pause(self, optimizer: torch.optim.Optimizer) -> None:
        """End a part, because an optimiser takes its step in Python."""
        self.end_part()
        self.parts[-1].optimizer = weakref.ref(optimizer)
        self.is_paused = True

    def go_on(self) -> None:
        """Begin the next part."""
        self.is_paused = False
        self.parts.append(Part())

    def end_part(self) -> None:
        """Record gradients and versions of tensors as they are now."""
        part = self.parts[-1]
        for leaf, (tensor, version) in self._touched.items():
            found = tensor()
            if found is not None:
                part.versions += [leaf] * (version_of(found) - version)
        self._touched.clear()
        self._part_gradients(part)

    def _part_gradients(self, part: Part) -> None:
        known = [g for p in self.parts[:-1] for g in p.gradients]
        before = {g.leaf: g.value for g in known}
        for entry in self.entries:
            tensor = entry.leaf.find(self._leaves)
            gradient = None if tensor is None else tensor.grad
            value = None if gradient is None else self.value_of(gradient)
            start = None if entry.gradient is None else Gradient(entry.leaf)
            version = 0
            if isinstance(value, Made):  # an earlier part may have changed it before
                of = [g.version for g in known if (g.leaf, g.value) == (entry.leaf, value)]
                version = version_of(gradient) - sum(of)
            if value != before.get(entry.leaf, start) or version:
                part.gradients.append(Grad(entry.leaf, value, version))

    def value_of(self, tensor: Tensor) -> Value:
        """Return the value of a tensor; one that isn't known comes from outside."""
        slot = tensor.mesh_handle.slot
        found = self._values.get(slot)
        if found is None:
            found = self._values[slot] = Captured(tensor)
        return found

    def is_gradient(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a gradient that the call has set."""
        return any(each.leaf.find(self._leaves).grad is tensor for p in self.parts for each in p.gradients)

    # --- what lives on

    def outliving(self, kept: Iterable[Value]) -> list[Made]:
        """Return values made by the call that something refers to, apart from those that are kept.

        Args:
            kept: results, and new gradients.
        """
        expected = set(kept)
        return [value for value in self._living() if value not in expected]

    def _living(self) -> list[Made]:
        """Return values made by the call that something refers to."""
        unused = self._engine.slots.unused()
        return [v for slot, v in self._values.items() if isinstance(v, Made) and slot not in unused]

    def rebound(self) -> bool:
        """Return whether the call has given a tensor from outside another slot, as `squeeze_` does."""
        tensors = ((tensor(), handle) for tensor, handle in self._bound)
        return any(t is not None and not t.dropped and t.mesh_handle is not h() for t, h in tensors)

    def place_of(self, made: Made) -> Place:
        """Return the line that made a value."""
        for part in self.parts:
            for each in part.commands:
                if made in each.outputs:
                    return Place(*each.place)
        return Place(None, 0, "")


class Foreign:
    """The recorder of another mesh than the recorded one."""

    is_paused = False

    def command(self, *_: Any) -> NoReturn:
        """Raise an error.

        Raises:
            WrongTensor: always.
        """
        raise WrongTensor(
            "WRONG_MESH: a compiled function uses tensors of one mesh, not of two: call it once for each mesh"
        )

    def parcel(self, plain: Any) -> None:
        """Raise an error, as `command`."""
        self.command()

    def sent(self, plain: Any, made: Any, **_: Any) -> None:
        """Raise an error, as `command`."""
        self.command()

    def needs(self) -> None:
        """Raise an error, as `command`."""
        self.command()

    def reads(self, *_: Any) -> NoReturn:
        """Raise an error, as `command`."""
        self.command()

    def gave(self, *_: Any) -> None:
        """Do nothing: reading has raised before."""

    @contextmanager
    def shows(self) -> Iterator[bool]:
        """Say that numbers can't be had now."""
        yield False


def is_leaf(tensor: torch.Tensor) -> bool:
    """Return whether a tensor gets a gradient of its own."""
    return bool(tensor.requires_grad and tensor.is_leaf)


def first_difference(one: Sequence[Part], other: Sequence[Part]) -> str:
    """Return in words the first command that differs between two recordings of one function; "" if they are
    equal.
    """
    pairs = itertools.zip_longest(
        [c for part in one for c in part.commands], [c for part in other for c in part.commands]
    )
    for a, b in pairs:
        found = _difference(a, b)
        if found:
            return f"{found}\n  {Place(*(b or a).place)}"
    if [_rest(p) for p in one] != [_rest(p) for p in other]:
        return "it left other gradients behind, or its optimisers stepped or it read values at another place"
    return ""


def _rest(part: Part) -> Any:
    return part.gradients, len(part.commands), part.optimizer, part.read


def _difference(a: Recorded | None, b: Recorded | None) -> str:
    if a is None or b is None:
        return f"{(a or b).plan.op} was done once only"  # type: ignore[union-attr]
    if a.plan is not b.plan:
        return (
            f"it did {a.plan.op} first, then {b.plan.op} with other arguments"
            if (a.plan.op == b.plan.op)
            else f"it did {a.plan.op} first, then {b.plan.op}"
        )
    if a.scalars != b.scalars:
        x, y = next((x, y) for x, y in zip(a.scalars, b.scalars, strict=True) if x != y)
        return f"a number of {a.plan.op} was {x:.6g} first, then {y:.6g}, and a replay would repeat it"
    if a.inputs != b.inputs or a.outputs != b.outputs:
        return f"{a.plan.op} took other tensors the second time"
    if not all(map(_is_equal, a.parcels, b.parcels)):
        return "a plain tensor that is made in it had other numbers the second time"
    return ""


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return all(_is_equal(a, b) for a, b in zip(one, other, strict=True))
    return one is other if one is None or other is None else bool(torch.equal(one, other))
