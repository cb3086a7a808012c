"""The parts of a recording: commands, and the values that they take and make.

Values are compared by `==` between two recordings of one function: equal values play the same part in both.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from monarch_nb._rank.tensor.protocol import FetchFrom
from monarch_nb._tensor.metadata import Grid, Meta, Placements
from monarch_nb._tensor.plan import Plan
from monarch_nb._tensor.slots import DroppedHandle, Handle
from monarch_nb._tensor.tensor import Tensor

PlaceOf = tuple[Any, int, str, str]
"""Code, line and layer of a command, as in `Places`."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor among the arguments of the call.

    Attributes:
        index: its number in the flat arguments.
    """

    index: int

    def find(self, leaves: Sequence[Any]) -> Any:
        """Return the tensor in a call with other arguments."""
        return leaves[self.index]


class Captured:
    """A tensor that existed before the call, such as a parameter.

    Args:
        tensor: the tensor; a plain one, or one of a mesh.
    """

    __slots__ = ("_tensor", "handle", "meta")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        is_ours = isinstance(tensor, Tensor)
        self.handle: weakref.ref[Handle] | None = weakref.ref(tensor.mesh_handle) if is_ours else None
        """The owner of its slot; None for a plain tensor."""
        self.meta = tensor.mesh_meta if is_ours else (tensor.shape, tensor.dtype)

    def find(self, leaves: Sequence[Any]) -> Any:
        """Return the tensor; None if it doesn't exist any more."""
        return self._tensor()

    def slot(self) -> int:
        """Return its slot."""
        found = self.handle() if self.handle is not None else None
        assert found is not None
        return found.slot

    def is_same(self) -> bool:
        """Return whether it still exists, and has its values in the same slot and the same layout."""
        tensor = self._tensor()
        if self.handle is None:
            return tensor is not None and self.meta == (tensor.shape, tensor.dtype)
        handle = self.handle()
        if handle is None or isinstance(handle, DroppedHandle):
            return False
        return tensor is None or (tensor.mesh_handle is handle and tensor.mesh_meta is self.meta)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Captured):
            return NotImplemented
        return self.handle is other.handle and (self.handle is not None or self._tensor is other._tensor)

    def __hash__(self) -> int:
        return id(self._tensor if self.handle is None else self.handle)


Leaf = Argument | Captured


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient that a tensor has when the call begins."""

    leaf: Leaf

    def find(self, leaves: Sequence[Any]) -> Any:
        """Return the gradient."""
        tensor = self.leaf.find(leaves)
        return None if tensor is None else tensor.grad


@dataclass(frozen=True, slots=True)
class Sent:
    """A plain tensor that is sent to the ranks.

    Attributes:
        plain: the plain tensor.
        is_adopted: whether it's sent only if it has changed.
    """

    plain: Leaf
    is_adopted: bool
    grid: Grid
    placements: Placements | None
    maps: bool

    def find(self, leaves: Sequence[Any]) -> Any:
        """Send the plain tensor; return the tensor of the mesh."""
        plain, engine = self.plain.find(leaves), self.grid.engine
        if self.is_adopted:
            return engine.adopt(plain, self.grid, self.placements)
        return engine.put(plain, self.grid, self.placements, maps=self.maps)


@dataclass(frozen=True, slots=True)
class Made:
    """The result of a recorded command, the number of which counts from the begin of the recording."""

    number: int
    meta: Meta


Value = Argument | Captured | Gradient | Sent | Made


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded command.

    Attributes:
        plan: its plan.
        inputs, outputs: values that it takes and makes.
        scalars: floats beside it, without the seed.
        place: the line of the user's that made it.
        parcels: the plain value that it sends, if it does so.
    """

    plan: Plan
    inputs: tuple[Value, ...]
    outputs: tuple[Made, ...]
    scalars: tuple[float, ...]
    place: PlaceOf
    parcels: tuple[Any, ...] = ()

    @property
    def num_seeds(self) -> int:
        """How many seeds go with it."""
        return int(self.plan.is_random)


@dataclass(frozen=True, slots=True)
class Grad:
    """A change of a tensor's gradient.

    Attributes:
        leaf: tensor whose gradient it is.
        value: the new gradient; None: it has none.
        version: how often the call has changed it in place.
    """

    leaf: Leaf
    value: Value | None
    version: int = 0


@dataclass(slots=True)
class Read:
    """A value of the mesh that the call reads.

    Attributes:
        value: what is read.
        how: from which ranks.
        convert: makes Python's value of the plain tensor that comes, if the function does nothing but return
            it; None if the value may decide what the function does.
        place: the line of the user's that reads.
        answer: what came, as something that can be compared; None if that's too much.
        alive: values made by the call that something refers to when it reads.
    """

    value: Value
    how: FetchFrom
    convert: Callable[[torch.Tensor], Any] | None = None
    place: PlaceOf = field(default=(None, 0, "", ""), compare=False)
    answer: Any = field(default=None, compare=False)
    alive: frozenset[Made] = field(default=frozenset(), compare=False)

    @property
    def decides(self) -> bool:
        """Whether the value may decide what the function does."""
        return self.convert is None


@dataclass(slots=True)
class Part:
    """A sequence of commands without Python between them.

    Attributes:
        commands: the commands.
        gradients: gradients that have changed when the part ends.
        versions: tensors that were changed in place, each as often as it was changed.
        optimizer: the optimiser that takes its step in Python after the part.
        read: the value that is read after the part.
    """

    commands: list[Recorded] = field(default_factory=list)
    gradients: list[Grad] = field(default_factory=list)
    versions: list[Leaf | Gradient] = field(default_factory=list)
    optimizer: weakref.ref[torch.optim.Optimizer] | None = None
    read: Read | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor as a call finds it, with what is known of its gradient.

    Attributes:
        leaf: tensor that requires a gradient.
        gradient: metadata of its gradient; None if it has none.
    """

    leaf: Leaf
    gradient: Meta | None

    def is_as_before(self, leaves: Sequence[Any]) -> bool:
        """Return whether a call finds the same."""
        tensor = self.leaf.find(leaves)
        if tensor is None or not tensor.requires_grad:
            return False
        found = tensor.grad
        return (None if found is None else getattr(found, "mesh_meta", found)) is self.gradient
