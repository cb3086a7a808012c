"""The slots of the ranks' tables. A slot is freed when no object on the controller refers to it any more."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from monarch_nb.exceptions import DeviceMeshError, WrongTensor

if TYPE_CHECKING:
    from monarch_nb._tensor.metadata import Meta

FULL = 1 << 20
LIGHTEST = FULL >> 5
"""The ranks are told of free slots when their weights come to `FULL`: the weight of a value is its number of
bytes, and at least `LIGHTEST`. So many small ones are told at once, and a big one without delay.
"""


class Slots:
    """The controller's view of one engine's table of values.

    Attributes:
        top: length of the table.
        free: unused slots below that.
        dropped: slots that are free, but whose ranks haven't been told yet.
        weight: the sum of their values' weights. Commands are made by the hundred thousand a second, and look
            at nothing else.
    """

    __slots__ = ("dropped", "free", "top", "weight")

    def __init__(self) -> None:
        self.free: list[int] = []
        self.dropped: list[int] = []
        self.weight = 0
        self.top = 0

    def acquire(self) -> int:
        """Return an unused slot."""
        if self.free:
            return self.free.pop()
        self.top += 1
        return self.top - 1

    def drop(self, slot: int, weight: int = LIGHTEST) -> None:
        """Record that a slot is no longer used. Any thread may call it, also the garbage collector at any
        moment: a drop that isn't counted then is sent with the next message.
        """
        self.dropped.append(slot)
        self.weight += weight

    def collect(self) -> list[int]:
        """Return the slots dropped since the last call; they may be reused."""
        self.weight = 0
        num = len(self.dropped)
        found = self.dropped[:num]
        del self.dropped[:num]
        self.free.extend(found)
        return found

    def tell_soon(self) -> None:
        """Have the ranks be told of free slots with the next command, however few these are."""
        self.weight = FULL

    def unused(self) -> set[int]:
        """Return the slots that no tensor has now."""
        return {*self.free, *self.dropped}

    @property
    def num_live(self) -> int:
        """The number of slots in use."""
        return self.top - len(self.free) - len(self.dropped)


class Handle:
    """The owner of a slot, which keeps the slot in use. It is an object of its own: autograd would resurrect
    a tensor that has a `__del__`.
    """

    __slots__ = ("__weakref__", "meta", "seq", "slot", "slots", "weight", "why")

    def __init__(self, slots: Slots, seq: int, meta: Meta | None = None) -> None:
        self.slots = slots
        free = slots.free
        self.slot = free.pop() if free else slots.acquire()
        self.seq = seq
        self.meta = meta
        self.weight = LIGHTEST if meta is None else meta.weight

    def __del__(self) -> None:
        slots = self.slots
        slots.dropped.append(self.slot)
        slots.weight += self.weight

    def dropped(self) -> DroppedHandle:
        """Return what takes this one's place in a tensor that is dropped: later uses raise an error. The slot
        is freed with the last tensor that shares it.
        """
        found = DroppedHandle.__new__(DroppedHandle)
        found.slots, found.seq, found.meta, found.weight = self.slots, self.seq, self.meta, self.weight
        return found

    def lose(self, why: str) -> None:
        """Free the slot: its value was lost with a rank. Later uses raise an error that says so."""
        self.slots.drop(self.slot, self.weight)
        self.__class__, self.why = LostHandle, why


def live_handles() -> list[Handle]:
    """Return the handles of all tensors of this program that are in use."""
    return [each for each in gc.get_objects() if type(each) is Handle]  # isinstance would wake lazy objects


class DroppedHandle(Handle):
    """A handle whose owner has given the slot back."""

    __slots__ = ()

    @property
    def slot(self) -> int:  # type: ignore[override]
        """Raise an error: the slot was freed.

        Raises:
            WrongTensor: always.
        """
        raise WrongTensor(
            "DROPPED: this tensor was dropped, by its drop() or with the borrow that it came from; "
            "compute it again, or drop it later"
        )

    def __del__(self) -> None:
        pass

    def dropped(self) -> DroppedHandle:
        """Return this: the slot was given back before."""
        return self


class LostHandle(DroppedHandle):
    """A handle whose value was lost with a rank."""

    __slots__ = ()

    @property
    def slot(self) -> int:  # type: ignore[override]
        """Raise an error: the value was lost.

        Raises:
            DeviceMeshError: always.
        """
        raise DeviceMeshError(self.why)
