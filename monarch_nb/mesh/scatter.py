"""Splits data into a part for each rank: tensors, arrays, lists and tables, which keep their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_nb.exceptions import MeshUsageError

_TABLES: dict[str, Callable[[Any, int, int], Any]] = {
    "pyarrow": lambda table, begin, length: table.slice(begin, length),
    "polars": lambda frame, begin, length: frame.slice(begin, length),
    "pandas": lambda frame, begin, length: frame.iloc[begin : begin + length],
}
"""Functions that cut rows out of a package's tables."""


def parts_of(name: str, value: Any, num: int, dim: int) -> list[Any]:
    """Return the parts of a variable; see `split_evenly`.

    Raises:
        MeshUsageError: if it can't be split.
    """
    try:
        return split_evenly(value, num, dim)
    except (TypeError, IndexError) as error:
        raise MeshUsageError(
            f"%mesh scatter: {name} is a {type(value).__name__}, which can't be split along dimension {dim} "
            f"({error}); a tensor, an array, a table or a list can"
        ) from None


def split_evenly(value: Any, num: int, dim: int = 0) -> list[Any]:
    """Return `num` parts of a tensor, an array, a list or a table, whose sizes differ by one at most.

    A table is one of Arrow, Polars or pandas, a dataset of Hugging Face (which is sharded), or a relation of
    DuckDB (which is run once, and becomes an Arrow table); its parts are rows, with all columns and their
    types.

    Raises:
        TypeError: for what can't be split so.

    >>> split_evenly([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    package = type(value).__module__.partition(".")[0]
    if package in ("duckdb", "_duckdb"):
        value, package = value.to_arrow_table(), "pyarrow"
    if package in _TABLES or package == "datasets":
        return _rows(value, num, dim, package)
    if hasattr(value, "tensor_split"):
        return [part.contiguous() for part in value.tensor_split(num, dim)]
    if hasattr(value, "__array__"):
        import numpy

        return list(numpy.array_split(value, num, axis=dim))
    return [value[begin : begin + length] for begin, length in _bounds(len(value), num)]


def _rows(table: Any, num: int, dim: int, package: str) -> list[Any]:
    if dim not in (0, -len(getattr(table, "shape", (0,)))):
        raise TypeError("a table is split by rows, which is dimension 0")
    if package == "datasets":
        return [table.shard(num, index, contiguous=True) for index in range(num)]
    cut = _TABLES[package]
    return [cut(table, begin, length) for begin, length in _bounds(len(table), num)]


def _bounds(size: int, num: int) -> list[tuple[int, int]]:
    """Return the beginning and the length of each part."""
    length, rest = divmod(size, num)
    return [(i * length + min(i, rest), length + (i < rest)) for i in range(num)]
