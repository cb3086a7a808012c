"""The answers of a mesh: one value for each point, with the mesh's algebra on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

from monarch_nb._shape import MeshTrait, Point, Shape, format_ranks
from monarch_nb._tracebacks import BadIndex, BadType, BadValue
from monarch_nb._transport.failure import repr_of
from monarch_nb._wire.loaded import loaded

T = TypeVar("T")
U = TypeVar("U")

_MAX_ROWS = 20
_MAX_TEXT = 120


class ValueMesh(MeshTrait, Generic[T]):
    """One value for each point of a mesh, in rank order.

    Iterating gives `(point, value)` pairs; `values()` the values alone; `vm[3]` the value of rank 3.

    Example:
        >>> losses = trainer.step.call(batch).get()     # doctest: +SKIP
        >>> losses.reduce("mean"), losses.slice(hosts=0).values()  # doctest: +SKIP
    """

    def __init__(self, shape: Shape, values: Sequence[T]) -> None:
        if len(values) != len(shape):
            raise ValueError(f"{len(values)} values for {len(shape)} points ({shape.extent})")
        self.__shape = shape
        self._values = values

    @property
    def _shape(self) -> Shape:
        return self.__shape

    def _with_shape(self, shape: Shape) -> Self:
        at = {rank: i for i, rank in enumerate(self.__shape.ranks)}
        return type(self)(shape, [self._values[at[rank]] for rank in shape.ranks])

    def __iter__(self) -> Iterator[tuple[Point, T]]:
        return self.items()

    def items(self) -> Iterator[tuple[Point, T]]:
        """Yield `(point, value)` in rank order."""
        return zip(self.__shape.points(), self._values, strict=True)

    def values(self) -> Iterator[T]:
        """Yield the values in rank order."""
        return iter(self._values)

    def item(self, **coords: int) -> T:
        """Return one value: at `coords`, or the only one.

        Raises:
            ValueError: without coordinates, if there are several values.
        """
        if coords or len(self) == 1:
            found = self.slice(**coords)
            if len(found) == 1:
                return next(found.values())
        raise BadValue(
            f"{len(self)} values ({self.extent}): name a coordinate of each dimension, "
            f"as in .item({', '.join(f'{n}=0' for n in self.extent.labels)})"
        )

    def __getitem__(self, where: int | Point) -> T:
        """Return the value of a rank or at a point of this mesh."""
        index = where.rank if isinstance(where, Point) else where
        if isinstance(index, bool) or not isinstance(index, int):
            raise BadType(f"expected a rank or a point, not {type(index).__name__}; use .slice() for parts")
        if not -len(self) <= index < len(self):
            raise BadIndex(f"rank {index} is out of range: there are {len(self)} values")
        return self._values[index]

    def map(self, function: Callable[[T], U]) -> ValueMesh[U]:
        """Return `function` of each value, at the same points."""
        return ValueMesh(self.__shape, [function(v) for v in self._values])

    def reduce(self, how: str | Callable[[T, T], T], *initial: T) -> Any:
        """Combine all values: with "sum", "mean", "min", "max", "equal" (all the same, or an error) or a
        function.

        >>> from monarch_nb._shape import Extent
        >>> ValueMesh(Shape.full(Extent(["gpus"], [3])), [1, 2, 3]).reduce("sum")
        6
        """
        if callable(how):
            return _fold(how, [*initial, *self._values])
        reducers: dict[str, Callable[[], Any]] = {
            "sum": lambda: _fold(_add, [*initial, *self._values]),
            "mean": lambda: _fold(_add, list(self._values)) / len(self),
            "min": lambda: _fold(_smaller, [*initial, *self._values]),
            "max": lambda: _fold(_larger, [*initial, *self._values]),
            "equal": self._the_only_value,
        }
        if how not in reducers:
            raise BadValue(f"reduce takes a function or one of {', '.join(reducers)}; not {how!r}")
        return reducers[how]()

    def _the_only_value(self) -> T:
        groups = self.folded()
        if len(groups) > 1:
            raise BadValue("the values differ: " + "; ".join(_row(r, v) for r, v in groups[:_MAX_ROWS]))
        return groups[0][1]

    def folded(self) -> list[tuple[tuple[int, ...], T]]:
        """Return the distinct values, each with its ranks."""
        groups: list[tuple[list[int], T]] = []
        for rank, value in enumerate(self._values):
            for ranks, known in groups:
                if same(known, value):
                    ranks.append(rank)
                    break
            else:
                groups.append(([rank], value))
        return [(tuple(ranks), value) for ranks, value in groups]

    def to_pandas(self) -> Any:
        """Return a DataFrame: a column for each dimension, and one for the value, or for each key if
        values are dicts.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pandas") from None
        rows = [{**p, **(v if isinstance(v, dict) else {"value": v})} for p, v in self.items()]
        return pandas.DataFrame(rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueMesh):
            return NotImplemented
        pairs = zip(self._values, other._values, strict=False)
        return self.__shape == other.__shape and all(same(a, b) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        groups = self.folded()
        rows = [_row(r, v) for r, v in groups[:_MAX_ROWS]]
        if len(groups) > _MAX_ROWS:
            rows.append(f"... {len(groups) - _MAX_ROWS} more")
        return f"ValueMesh({self.extent}): " + "; ".join(rows)

    def _repr_html_(self) -> str:
        from monarch_nb._display.table import html_table

        groups = self.folded()
        rows = [(format_ranks(r), _short(v)) for r, v in groups[:_MAX_ROWS]]
        more = len(groups) - _MAX_ROWS
        note = f"{more} more distinct values" if more > 0 else ""
        # marimo takes a plain `str` only
        return str(html_table((f"ranks ({self.extent})", "value"), rows, title=note, code=[1]))


def same(a: Any, b: Any) -> bool:
    """Say whether two values are equal; arrays, tensors and tables as wholes. NaN counts as equal to NaN,
    since both look the same.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    torch = loaded("torch")
    try:
        if torch is not None and isinstance(a, torch.Tensor):
            return _same_tensor(torch, a, b)
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
        if isinstance(a, list | tuple):
            return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
        return _same_plain(a, b)
    except Exception:  # a user's __eq__ may do anything; unequal is the safe answer
        return False


def _same_tensor(torch: Any, a: Any, b: Any) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.cpu(), b.cpu()
    return bool(
        torch.equal(a, b) or (a.is_floating_point() and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
    )


def _same_plain(a: Any, b: Any) -> bool:
    result = a == b
    if not hasattr(result, "all"):
        return bool(result) or bool(a != a and b != b)
    if hasattr(a, "equals"):  # a table of pandas
        return bool(a.equals(b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool((result | ((a != a) & (b != b))).all())


def _row(ranks: Sequence[int], value: object) -> str:
    return f"[{format_ranks(ranks)}] {_short(value)}"


def _short(value: object) -> str:
    text = repr_of(value)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."


def _fold(function: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def _add(a: Any, b: Any) -> Any:
    return a + b


def _smaller(a: Any, b: Any) -> Any:
    return b if b < a else a


def _larger(a: Any, b: Any) -> Any:
    return b if b > a else a
