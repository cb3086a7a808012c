"""Encodes tables: their columns are sent as buffers, like arrays, and arrive with the same types.

Arrow pickles its buffers by itself, but a slice takes along all that it was cut from; so a slice is written
anew. Polars would serialize itself within pickle, at a fraction of the speed: it goes as Arrow, which shares
its memory. A relation of DuckDB can't leave its connection: it's run, and what arrives is an Arrow table.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]

SLACK = 1.1
"""A table is a slice if its buffers are larger than it by this factor."""
_reducers: dict[type, Callable[[Any], Reduced | None] | None] = {}


def reduce_table(value: Any) -> Reduced | None:
    """Return how a table is made again on the other side; None for what is none, and for what pickle does
    well.
    """
    kind = type(value)
    if kind not in _reducers:
        _reducers[kind] = _reducer_of(kind)
    reducer = _reducers[kind]
    return None if reducer is None else reducer(value)


def _reducer_of(kind: type) -> Callable[[Any], Reduced | None] | None:
    package = kind.__module__.partition(".")[0]
    if package == "pyarrow" and kind.__name__ in ("Table", "RecordBatch"):
        return _reduce_arrow
    # Polars imports pyarrow only when it converts.
    if package == "polars" and kind.__name__ in ("DataFrame", "Series") and find_spec("pyarrow"):
        return _reduce_polars
    if package in ("duckdb", "_duckdb") and kind.__name__ == "DuckDBPyRelation":
        return _reduce_relation
    return None


def _reduce_relation(relation: Any) -> Reduced:
    return _same, (relation.to_arrow_table(),)


def _same(table: Any) -> Any:
    return table


def _reduce_arrow(table: Any) -> Reduced | None:
    if table.get_total_buffer_size() <= SLACK * table.nbytes + 1024:
        return None
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return _read_arrow, (pickle.PickleBuffer(sink.getvalue()), type(table).__name__ == "RecordBatch")


def _read_arrow(buffer: Any, is_batch: bool) -> Any:
    import pyarrow

    with pyarrow.ipc.open_stream(pyarrow.py_buffer(buffer)) as reader:
        return reader.read_next_batch() if is_batch else reader.read_all()


def _reduce_polars(frame: Any) -> Reduced | None:
    import polars

    is_series = isinstance(frame, polars.Series)
    whole = polars.DataFrame({"": frame}) if is_series else frame
    if any(dtype.is_object() or dtype.is_nested() for dtype in whole.dtypes):
        return None  # Arrow lacks this type, or converts it to another one
    table = whole.to_arrow(compat_level=polars.CompatLevel.newest())
    return _read_polars, (table, dict(whole.schema), frame.name if is_series else None)


def _read_polars(table: Any, schema: dict[str, Any], series: str | None) -> Any:
    import polars

    frame = polars.DataFrame(polars.from_arrow(table, rechunk=False))
    if dict(frame.schema) != schema:
        frame = frame.cast(schema)
    return frame if series is None else frame.to_series().rename(series)
