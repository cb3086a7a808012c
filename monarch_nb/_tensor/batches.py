"""Makes batches from a data source: arrays, tables, queries, iterators. Memory is shared, not copied."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monarch_nb.exceptions import MeshUsageError, WrongTensor

_TABLES = ("Table", "RecordBatch", "DataFrame", "LazyFrame")


def batches_of(source: Any, batch_size: int | None) -> Iterator[Any]:
    """Return an iterator of a source's batches, whose arrays and columns are plain tensors.

    Raises:
        MeshUsageError: for an unsupported source, or one that needs `batch_size` and has none.
    """
    cut = _cutter(source)
    if cut is not None:
        if batch_size is None:
            raise MeshUsageError(
                f"feed cuts a {_name(source)} into batches, of as many rows as you say: "
                "feed(..., batch_size=64)"
            )
        return map(tensors_of, cut(source, batch_size))
    if batch_size is not None:
        raise MeshUsageError(
            f"the batches of a {_name(source)} come as they are: leave out batch_size, or give one array or "
            "table"
        )
    if not isinstance(source, Iterable) or isinstance(source, (str, bytes, dict)):
        raise MeshUsageError(
            "feed takes a tensor, an array, a table (Arrow, Polars, DuckDB), or an iterable of batches such "
            f"as a DataLoader; not a {_name(source)}"
        )
    return map(tensors_of, iter(source))


def _name(value: Any) -> str:
    return f"{_package(value)}.{type(value).__name__}".removeprefix("builtins.")


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _cutter(source: Any) -> Callable[[Any, int], Iterator[Any]] | None:
    """Return the function that splits a source of this type into batches; None if there is none."""
    package, kind = _package(source), type(source).__name__
    if package in ("duckdb", "_duckdb"):
        return lambda query, rows: iter(query.to_arrow_reader(rows))
    if package in ("pyarrow", "polars") and kind in _TABLES:
        return _table_slices
    return _slices if isinstance(source, torch.Tensor) or _is_array(source) else None


def _is_array(value: Any) -> bool:
    return _package(value) == "numpy" and hasattr(value, "__array__")


def _slices(value: Any, rows: int) -> Iterator[Any]:
    return (value[begin : begin + rows] for begin in range(0, len(value), rows))


def _table_slices(table: Any, rows: int) -> Iterator[Any]:
    whole = table.collect() if hasattr(table, "collect") else table
    return (whole.slice(begin, rows) for begin in range(0, len(whole), rows))


def tensors_of(batch: Any) -> Any:
    """Return a batch with tensors in place of arrays; a table becomes a dict of its columns.

    Raises:
        MeshUsageError: for a column that can't be converted to a tensor.
        WrongTensor: for an array that can't be converted.
    """
    table = _arrow(batch)
    if table is not None:
        return {name: _column(name, table.column(name)) for name in table.schema.names}
    return pytree.tree_map(lambda each: _array(each) if _is_array(each) else each, batch)


def _arrow(batch: Any) -> Any:
    package, kind = _package(batch), type(batch).__name__
    if package == "polars" and kind == "DataFrame":
        return batch.to_arrow()
    return batch if package == "pyarrow" and kind in _TABLES else None


def _array(array: Any) -> torch.Tensor:
    try:
        with warnings.catch_warnings():  # the memory is read-only: nobody writes to it
            warnings.simplefilter("ignore", UserWarning)
            return torch.as_tensor(array)
    except (TypeError, ValueError) as error:
        raise WrongTensor(f"an array of {array.dtype} can't be a tensor: {error}") from None


def _column(name: str, column: Any) -> torch.Tensor:
    """Return a column as a tensor with its own memory; a column of lists of equal length has two
    dimensions.
    """
    import pyarrow

    whole = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    if whole.null_count:
        raise MeshUsageError(
            f"column {name!r} has {whole.null_count} nulls, and a tensor has none: fill them, as by "
            f'polars.col("{name}").fill_null(0) or pyarrow.compute.fill_null(column, 0)'
        )
    if pyarrow.types.is_fixed_size_list(whole.type):
        return _column(name, whole.flatten()).view(len(whole), whole.type.list_size)
    kind = whole.type
    if not (
        pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)
    ):
        raise MeshUsageError(
            f"column {name!r} is of {kind}, which no tensor is: leave it out, or make numbers of it before"
        )
    return _array(whole.to_numpy(zero_copy_only=not pyarrow.types.is_boolean(kind)))
