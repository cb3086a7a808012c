"""Plain pickle for values that are built from the basic types and small arrays only.

It takes 1 to 5 us where cloudpickle takes 20, but it would send a class of a notebook cell by its name, which
no rank can import. So it gives up at the first object that is of no basic type. Pickle itself asks about each
of those, and about nothing else: the value isn't searched before.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from monarch_nb._wire import small_arrays
from monarch_nb._wire.segment import MIN_BYTES


def dumps(value: object) -> bytes | None:
    """Return a value of basic types and small arrays as bytes; None if it holds something else, or bytes so
    long that they travel beside the message.

    Example:
        >>> pickle.loads(dumps([1, {"a": (2.5, None)}]))
        [1, {'a': (2.5, None)}]
        >>> dumps([dumps]) is None
        True
    """
    written = _Written()
    try:
        _Pickler(written, 5).dump(value)
    except Exception:  # _NotPlain; what else is wrong with the value, the general way says
        return None
    return written[0] if len(written) == 1 else b"".join(written)


class _NotPlain(Exception):  # no error: another way is taken
    """The value holds what must not be sent by plain pickle."""


class _Pickler(pickle.Pickler):
    _addresses: set[int] | None = None

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle what is of no basic type: a small array, or the function that reads one."""
        if value is small_arrays.tensor_of or value is small_arrays.array_of:
            return NotImplemented
        return self._reduced(value)

    def _reduced(self, value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        address = small_arrays.address_of(value)
        if not address:
            raise _NotPlain
        if self._addresses is None:
            self._addresses = {address}
        elif address in self._addresses:  # what shares memory does so on the other side, too
            raise _NotPlain
        else:
            self._addresses.add(address)
        return small_arrays.reduced(value)


class _Written(list[bytes]):
    """The parts that a pickler has written."""

    def write(self, data: bytes) -> None:
        """Take a part. Pickle gives long bytes in one part, before it has copied them."""
        if len(data) >= MIN_BYTES:
            raise _NotPlain
        self.append(data)
