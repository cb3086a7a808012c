"""Sends batches to the ranks ahead of their use: the counterpart of a loop over a DataLoader, for tensors of
a mesh.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monarch_nb._tensor.batches import batches_of
from monarch_nb._tensor.engines import grid_of
from monarch_nb._tensor.metadata import Grid, Placements, placements_of
from monarch_nb._tensor.module import data_axis
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.exceptions import MeshUsageError

Spec = Sequence[Any]


def feed(
    source: Any,
    mesh: Any,
    placements: Spec | Mapping[str, Spec] | None = None,
    *,
    prefetch: int = 2,
    batch_size: int | None = None,
) -> Iterator[Any]:
    """Return an iterator over a source's batches, as tensors of a mesh.

    A batch is written once, into memory that the ranks of this machine map, each its own rows. Batches are
    sent ahead of their use, and wait for the ranks.

    Args:
        source: an iterable of batches, as a DataLoader or a generator; a batch is a tensor, a numpy array, an
            Arrow or Polars table, or a tuple, list or dict of tensors and arrays. Or one tensor, array or
            table, or a relation of DuckDB, which is cut into batches of `batch_size` rows.
        mesh: a `monarch_nb.distributed.Mesh`, or any other mesh; or a model of `parallelize`, so that targets
            have the layout of the model's results.
        placements: a sharding spec like that of `distribute`, for all tensors of a batch (tensors of fewer
            dimensions use its first entries); or a dict of specs by column. By default rows are split over
            the data axis.
        prefetch: the number of batches that are sent ahead. The iterator waits while the ranks are more than
            this number of batches behind the program.
        batch_size: the number of rows of a batch. The last batch may have fewer.

    Yields:
        Batches, structured as in the source. A table becomes a dict of its columns, a column of lists of
        equal length a tensor of two dimensions. Values of other types stay unchanged.

    Raises:
        MeshUsageError: for a source that isn't one, a column with nulls or without numbers, an unknown axis.
        SupervisionError: (a DeviceMeshError) if the mesh is dead.
        Exception: the error of the source, with a note that names the batch.

    Example:
        >>> for x, y in monarch_nb.feed(DataLoader(data, 64), mesh):            # doctest: +SKIP
        ...     criterion(model(x), y).backward()
        >>> rows = duckdb.sql("select * from 'data.parquet'")                   # doctest: +SKIP
        >>> for batch in monarch_nb.feed(rows, mesh, batch_size=4096):          # doctest: +SKIP
        ...     loss = criterion(model(batch["x"]), batch["y"])
    """
    for name, value, least in (("prefetch", prefetch, 0), ("batch_size", batch_size, 1)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise MeshUsageError(f"{name} is a whole number, at least {least}; not {value!r}")
    is_model = isinstance(mesh, torch.nn.Module)
    source_of_grid = mesh.__dict__.get("forward") if is_model else mesh
    grid = grid_of(source_of_grid)
    if placements is None:  # a parallelized module says which ranks get rows
        placements = [source_of_grid.row_axes if is_model else grid.names[data_axis(grid)]]
    return _Feed(grid, batches_of(source, batch_size), type(source).__name__, placements, prefetch)


class _Feed:
    """The batches that are on their way to the ranks."""

    def __init__(self, grid: Grid, batches: Iterator[Any], name: str, spec: Any, prefetch: int) -> None:
        self._grid, self._batches, self._name, self._spec = grid, batches, name, spec
        self._prefetch = prefetch
        self._ready: deque[Any] = deque()
        self._marks: deque[Any] = deque()
        """For each batch that was handed out, a request that ranks answer when they have executed all
        commands before it.
        """
        self._num_read = 0
        self._end: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._wait()
        while self._end is None and len(self._ready) <= self._prefetch:
            self._read()
        if not self._ready:
            self._give_up_marks()
            raise self._end or StopIteration
        self._mark()
        return self._ready.popleft()

    def _read(self) -> None:
        """Read one more batch and send it. An error of the source is raised after the batches before it."""
        try:
            self._ready.append(self._sent(next(self._batches)))
            self._num_read += 1
        except StopIteration as end:
            self._end = end
        except Exception as error:
            error.add_note(f"in batch {self._num_read} (from 0) of the {self._name} given to monarch_nb.feed")
            self._end = error

    def _sent(self, batch: Any) -> Any:
        if isinstance(batch, dict):
            return {key: pytree.tree_map(self._sender(key), each) for key, each in batch.items()}
        return pytree.tree_map(self._sender(None), batch)

    def _sender(self, key: Any) -> Any:
        return lambda each: self._put(each, key) if isinstance(each, torch.Tensor) else each

    def _put(self, plain: torch.Tensor, key: Any) -> Any:
        if isinstance(plain, Tensor):
            return plain
        return self._grid.engine.put(plain, self._grid, self._layout(plain, key), maps=True)

    def _layout(self, plain: torch.Tensor, key: Any) -> Placements:
        spec = self._spec
        if isinstance(spec, Mapping):
            if key not in spec:
                raise MeshUsageError(f"placements has no {key!r}, only {', '.join(map(repr, spec))}")
            return placements_of(spec[key], plain.shape, self._grid)
        return placements_of(spec[: plain.dim()], plain.shape, self._grid)

    # --- the limit of batches ahead

    def _mark(self) -> None:
        engine = self._grid.engine
        engine.stream.flush()
        self._marks.append(engine.worker.reached.call())

    def _wait(self) -> None:
        while len(self._marks) > self._prefetch:
            self._marks.popleft().get()

    def _give_up_marks(self) -> None:
        while self._marks:
            self._marks.popleft().drop()
