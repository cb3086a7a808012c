"""Places in the ranks' tables. A slot is given back when nothing on the controller refers to it any more."""

from __future__ import annotations

from monarch_nb.exceptions import WrongTensor


class Slots:
    """The table of one engine, as the controller knows it."""

    __slots__ = ("_dropped", "_free", "top")

    def __init__(self) -> None:
        self._free: list[int] = []
        self._dropped: list[int] = []
        self.top = 0

    def take(self) -> int:
        """Return a slot that nobody uses."""
        if self._free:
            return self._free.pop()
        self.top += 1
        return self.top - 1

    def drop(self, slot: int) -> None:
        """Note that a slot isn't used any more. Any thread may call it, also the garbage collector in the
        middle of anything.
        """
        self._dropped.append(slot)

    def has_dropped(self) -> bool:
        """Say whether ranks have to be told of drops."""
        return bool(self._dropped)

    def collect(self) -> list[int]:
        """Return what was dropped since the last time; it may be taken again."""
        num = len(self._dropped)
        found = self._dropped[:num]
        del self._dropped[:num]
        self._free.extend(found)
        return found

    @property
    def num_live(self) -> int:
        """How many slots are in use."""
        return self.top - len(self._free) - len(self._dropped)


class Handle:
    """Keeps a slot. An object of its own: a tensor with a `__del__` would be brought back to life by
    autograd.
    """

    __slots__ = ("seq", "slot", "slots")

    def __init__(self, slots: Slots, seq: int) -> None:
        self.slots = slots
        self.slot = slots.take()
        self.seq = seq

    def __del__(self) -> None:
        self.slots.drop(self.slot)

    def release(self) -> None:
        """Give the slot back now: whoever uses it afterwards gets an error."""
        self.slots.drop(self.slot)
        self.__class__ = DroppedHandle


class DroppedHandle(Handle):
    """A handle whose slot was given back by its owner."""

    __slots__ = ()

    @property
    def slot(self) -> int:  # type: ignore[override]
        """Nothing is there any more.

        Raises:
            WrongTensor: always.
        """
        raise WrongTensor(
            "DROPPED: this tensor was dropped, by its drop() or with the borrow that it came from; "
            "compute it again, or drop it later"
        )

    def __del__(self) -> None:
        pass

    def release(self) -> None:
        """Nothing is left to do."""
