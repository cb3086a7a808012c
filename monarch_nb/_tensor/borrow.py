"""Streams, which name independent sequences of work, and the borrowing of tensors between them.

A tensor belongs to the stream that made it; an operation takes tensors of one stream. Another stream borrows
one, to read it or to change it; until the borrow is dropped, its owner can't change it, or can't use it at
all.

The ranks do the commands of all streams in the order in which the program made them: one of the orders that
streams allow, so results are those of any other; they don't run beside each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

from monarch_nb._tensor.metadata import FREE, LENT, MAIN_STREAM, READ_ONLY, TAKEN
from monarch_nb._tensor.movement import check
from monarch_nb._tensor.slots import DroppedHandle
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.exceptions import MeshUsageError, WrongTensor

_numbers = itertools.count(1)


class Stream:
    """A named stream of operations, executed in order.

    Args:
        name: name in errors.
        default: whether tensors belong to it where no stream is active.

    Example:
        >>> loading = monarch_nb.Stream("loading")           # doctest: +SKIP
        >>> with mesh.activate(), loading.activate():        # doctest: +SKIP
        ...     batch = torch.rand(8, 4)
        >>> mine, borrow = monarch_nb.get_active_stream().borrow(batch)  # doctest: +SKIP
    """

    def __init__(self, name: str, default: bool = False) -> None:
        if not isinstance(name, str) or not name:
            raise MeshUsageError(f"a stream has a name, as in Stream('loading'); not {name!r}")
        self.title = name
        self.name = MAIN_STREAM if default else f"{name}#{next(_numbers)}"

    @contextmanager
    def activate(self) -> Iterator[Self]:
        """Make tensors that are created within the block belong to this stream."""
        token = _active.set(self)
        try:
            yield self
        finally:
            _active.reset(token)

    def borrow(self, tensor: Tensor, mutable: bool = False) -> tuple[Tensor, Borrow]:
        """Borrow a tensor of another stream for this one.

        Args:
            mutable: whether this stream may change the tensor; if so, the owner can't use it meanwhile.

        Returns:
            the tensor for use on this stream, and the `Borrow` that ends its use.

        Raises:
            WrongTensor: BORROWED: if it's borrowed already, and one of the two borrows is mutable.
        """
        check(tensor, "borrow")
        return Borrow.of(tensor, self, mutable)

    def __repr__(self) -> str:
        return f"<Stream {self.title}>"


class Borrow:
    """A tensor that another stream uses until `drop()`, or until the end of a `with` block."""

    def __init__(self, owner: Tensor, made: Tensor) -> None:
        self._owner, self._made = owner, made
        self._before = owner.mesh_meta

    @classmethod
    def of(cls, tensor: Tensor, stream: Stream, mutable: bool) -> tuple[Tensor, Borrow]:
        """Create a borrow; see `Stream.borrow`."""
        meta = tensor.mesh_meta
        if tensor.dropped:
            raise WrongTensor("DROPPED: this tensor was dropped: nothing is left to borrow")
        if meta.grid.access not in (FREE, LENT, READ_ONLY) or (mutable and meta.grid.access != FREE):
            raise WrongTensor(
                f"BORROWED: this tensor is borrowed already ({meta.grid.access}); that borrow is ended by "
                "its drop()"
            )
        made = Tensor(
            meta.on(meta.grid.variant(stream.name, FREE if mutable else READ_ONLY)), tensor.mesh_handle
        )
        found = cls(tensor, made)
        tensor.mesh_meta = meta.on(meta.grid.variant(meta.grid.stream, TAKEN if mutable else LENT))
        return made, found

    @property
    def tensor(self) -> Tensor:
        """The tensor as the borrowing stream uses it."""
        return self._made

    def drop(self) -> None:
        """End the borrow: the owner can use its tensor as before, and the borrowed one can't be used any
        more.

        Raises:
            WrongTensor: if the borrow has ended already.
        """
        if self._made.dropped:
            raise WrongTensor("DROPPED: this borrow was dropped before")
        self._made.mesh_handle = _GONE
        self._owner.mesh_meta = self._before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._made.dropped:
            self.drop()


_GONE: Any = DroppedHandle.__new__(DroppedHandle)
_main = Stream(MAIN_STREAM, default=True)
_active: ContextVar[Stream] = ContextVar("monarch_nb_stream", default=_main)


def get_active_stream() -> Stream:
    """Return the stream that newly created tensors belong to."""
    return _active.get()
