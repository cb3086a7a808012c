"""Errors that replace "rank 2: shape mismatch": they name layer, parameter, operation, layouts on the ranks,
and what to type.
"""

from __future__ import annotations

from collections.abc import Sequence

from monarch_nb._parallel.dry.outcome import Finding, LocalMismatch, Shape
from monarch_nb.exceptions import MeshError, ShapeError, ShardingError


def mismatch_error(found: LocalMismatch, kind: str, rows: int, num_ranks: int) -> MeshError:
    """Return the error for an operation that ranks can't execute on their parts of the batch.

    Args:
        kind: the class of the layer.
        rows: size of the batch.
    """
    layer = found.path or "the module"
    sides = [_side(name, shape, rows, num_ranks, layer) for name, shape in found.inputs]
    lines = [
        f"{found.op} can't be done by {num_ranks} ranks, each on its {rows // num_ranks} of {rows} rows",
        f"  in forward of {layer} ({kind}), {found.place}",
        *(f"  {each}" for each in sides),
        f"  error on the ranks: {str(found.error).splitlines()[0]}",
        *_fixes(found, layer, rows, num_ranks),
    ]
    return ShapeError("\n".join(lines))


def _side(name: str, shape: Shape, rows: int, num_ranks: int, layer: str) -> str:
    if name:
        return f"{name} {shape} is a parameter: whole on every rank"
    part = rows // num_ranks
    if shape.size and shape.size[0] == part:
        whole = Shape((rows, *shape.size[1:]), (), shape.dtype)
        return f"its partner {shape} is a rank's part of {whole}, split along dim 0"
    return f"its partner {shape} is the same on every rank"


def _fixes(found: LocalMismatch, layer: str, rows: int, num_ranks: int) -> Sequence[str]:
    name = next((n for n, s in found.inputs if n and rows in s.size), "")
    why = f"  {name} is as long as the whole batch, so " if name else "  The layer looks across the batch: "
    return [
        f"{why}{layer} has to see all of it. Any of these makes it work:",
        *_ways(found.path),
        *([f"    or make {name} as long as a row's own dimension, not the batch's"] if name else []),
    ]


def _ways(path: str) -> Sequence[str]:
    return [
        f'    parallelize(module, mesh, strategy=..., replicate=["{path}"])   every rank runs it on '
        "the whole batch",
        '    parallelize(module, mesh, strategy="auto")   finds such layers by itself',
    ]


def across_error(found: Finding, num_ranks: int) -> MeshError:
    """Return the error for a layer that mixes rows of the batch although it isn't named in `replicate`."""
    layer = found.path or "the module"
    return ShardingError(
        "\n".join([
            f"{found.op} can't be done on the rows of each of {num_ranks} ranks without looking at all of "
            f"them: {found.reason}",
            f"  in forward of {layer} ({found.kind}), {found.place}",
            f"  {layer} looks across the batch: on parts of it, it would compute something else. "
            "Any of these makes it work:",
            *_ways(found.path),
        ])
    )  # fmt: skip
