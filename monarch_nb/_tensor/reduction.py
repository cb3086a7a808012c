"""Reduces values that each rank has of its own along axes of the mesh, or moves them to another mesh.

Nothing here knows the tensor's class: it has these functions as methods.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch_nb._rank.tensor.protocol import Hole
from monarch_nb._tensor.metadata import FREE, Grid, contiguous, intern
from monarch_nb.exceptions import MeshUsageError, WrongTensor

if TYPE_CHECKING:
    from monarch_nb._tensor.tensor import Tensor

REDUCTIONS = ("stack", "sum", "avg", "product", "min", "max", "band", "bor", "bxor")
_BITWISE = ("band", "bor", "bxor")


def reduce(
    tensor: Tensor,
    dims: Sequence[str] | str = (),
    reduction: str = "sum",
    scatter: bool = False,
    mesh: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    """Reduce the ranks' own values along axes of the mesh.

    Args:
        tensor: a tensor of which each rank has its own value, all of the same shape.
        dims: the axis or axes of the mesh; () for all.
        reduction: "sum", "avg", "product", "min", "max", "band", "bor", "bxor"; or "stack", which stacks
            the values along a new first dimension.
        scatter: whether each rank gets only its part of the result along the first dimension, whose size must
            be that of the axis. With "stack", this is an all-to-all: each rank sends one entry to each other.
        mesh: the mesh of the result, as of `to_mesh`; it may lack the reduced axes.
        out: a tensor that is overwritten by the result.

    Returns:
        the result, which each rank has.

    Raises:
        WrongTensor: REQUIRES_GRAD: if the tensor requires a gradient, which isn't supported; and for global
            tensors.
        MeshUsageError: for unknown axes and reductions, or shapes that don't match.

    Example:
        >>> loss.detach().reduce("gpus", "avg")              # doctest: +SKIP
    """
    what = f"reduce({dims!r}, {reduction!r})"
    check_own(tensor, what)
    if tensor.requires_grad:
        raise WrongTensor(
            f"REQUIRES_GRAD: {what} has no gradient: x.detach() first, or under torch.no_grad()"
        )
    grid = tensor.mesh_meta.grid
    axes = _axes(grid, dims)
    size = _size_of_result(tensor, [grid.shape[a] for a in axes], reduction, scatter)
    number = grid.base.number
    made = intern(size, contiguous(size), tensor.dtype, grid.free, None)
    args = (Hole(0), number, axes, reduction, scatter)
    found: Tensor = tensor.engine.own("own.reduce", args, [tensor.detach()], made)
    if mesh is not None:
        gone = {grid.names[a]: 0 for a in axes}
        found = slice_mesh(found, **gone).to_mesh(mesh)
    return found if out is None else _taken(out, found)


def _taken(out: Tensor, found: Tensor) -> Tensor:
    if out.shape != found.shape:
        raise MeshUsageError(
            f"The given output shape, {out.shape}, is incorrect. Reduce expects the shape to be "
            f"{found.shape}."
        )
    taken: Tensor = out.copy_(found)
    return taken


def reduce_(
    tensor: Tensor,
    dims: Sequence[str] | str = (),
    reduction: str = "sum",
    scatter: bool = False,
    mesh: Any = None,
) -> Tensor:
    """Reduce like `reduce`, and replace the tensor by the result.

    Raises:
        MeshUsageError: if the result has another shape; and as of `reduce`.
    """
    if (reduction == "stack") != scatter:
        raise MeshUsageError(
            f"reduction {reduction} is not valid for in-place operation because the output size will not "
            "match the input size: x = x.reduce(...)"
        )
    if mesh is not None:
        raise MeshUsageError("reduce_ leaves the result where the tensor is: x.reduce(..., mesh=mesh)")
    changed: Tensor = tensor.copy_(reduce(tensor, dims, reduction, scatter))
    return changed


def _axes(grid: Grid, dims: Sequence[str] | str) -> tuple[int, ...]:
    names = (dims,) if isinstance(dims, str) else tuple(dims) or grid.names
    for name in names:
        if name not in grid.names:
            raise MeshUsageError(
                f"dim {name} not found in the mesh: its axes are {', '.join(map(repr, grid.names))}"
            )
    if len(set(names)) != len(names):
        raise MeshUsageError(f"reducing the same dimension twice: {names}")
    return tuple(map(grid.names.index, names))


def _size_of_result(tensor: Tensor, sizes: Sequence[int], reduction: str, scatter: bool) -> tuple[int, ...]:
    """Return the size of each rank's result.

    Args:
        sizes: the sizes of the axes.
    """
    if reduction not in REDUCTIONS:
        raise MeshUsageError(f"reduction {reduction} not supported, reductions are {REDUCTIONS}")
    if len(sizes) > 1 and (reduction == "stack" or scatter):
        raise MeshUsageError(
            f"reduction {reduction} or scatter = {scatter} is not valid for multiple dimensions: one after "
            "the other, x.reduce(a, ...).reduce(b, ...)"
        )
    if reduction in _BITWISE and tensor.dtype.is_floating_point:
        raise MeshUsageError(f"reduction {reduction} is of whole numbers, not of {tensor.dtype}")
    if reduction == "avg" and not tensor.dtype.is_floating_point:
        raise MeshUsageError(f"reduction avg is of floating point numbers, not of {tensor.dtype}: x.float()")
    size = tuple(tensor.shape)
    if not scatter:
        return (*sizes, *size) if reduction == "stack" else size
    if not size or size[0] != sizes[0]:
        raise MeshUsageError(
            f"When scattering results the outer dimension must have the same size as the mesh's: {sizes[0]}, "
            f"and this tensor is {list(size)}"
        )
    return size if reduction == "stack" else size[1:]


# --- to other meshes


@dataclass(frozen=True, slots=True)
class MeshSliceTensor:
    """The values of a tensor on a part of its mesh. `slice_mesh` makes it.

    Attributes:
        tensor: the tensor.
        ranks: ranks of the part, the last axis fastest.
        sizes: sizes of the remaining axes.
    """

    tensor: Tensor
    ranks: tuple[int, ...]
    sizes: Mapping[str, int]

    def to_mesh(self, mesh: Any, stream: Any = None) -> Tensor:
        """Copy the values to a mesh. Axes are matched by their names; along axes that only the destination
        has, all ranks get the same value.

        Args:
            mesh: the destination, a `monarch_nb.distributed.Mesh` or any other mesh.
            stream: the `Stream` of the result; by default that of the tensor.

        Raises:
            MeshUsageError: if the destination lacks an axis, or has it in another size.
        """
        check_own(self.tensor, "to_mesh")
        if self.tensor.requires_grad:
            raise WrongTensor("REQUIRES_GRAD: to_mesh has no gradient: x.detach() first")
        grid = self.tensor.engine.find_grid(mesh)
        name = self.tensor.mesh_meta.grid.stream if stream is None else stream.name
        return _brought(self.tensor, self._sources(grid), grid.variant(name, FREE))

    def _sources(self, grid: Grid) -> tuple[int, ...]:
        """Return the source rank of each rank of a grid."""
        for name, size in self.sizes.items():
            if name not in grid.names:
                raise MeshUsageError(
                    f"destination mesh does not have dimensions {{{name!r}}}: take one point of it, "
                    f"x.slice_mesh({name}=0).to_mesh(mesh)"
                )
            if grid.sizes[name] != size:
                raise MeshUsageError(
                    f"dimension {name} of destination device_mesh has a different length than the source "
                    f"tensor: {grid.sizes[name]}, not {size}"
                )
        points = list(itertools.product(*map(range, self.sizes.values())))
        by_point = dict(zip(points, self.ranks, strict=True))
        found = []
        for target in itertools.product(*map(range, grid.shape)):
            at = dict(zip(grid.names, target, strict=True))
            found.append(by_point[tuple(at[name] for name in self.sizes)])
        return tuple(found)


def slice_mesh(tensor: Tensor, **coordinates: int | slice) -> MeshSliceTensor:
    """Return the part of a tensor's values that is on a part of its mesh, to be copied by `to_mesh`.

    Args:
        coordinates: for each axis an index, which removes the axis, or a slice.

    Raises:
        MeshUsageError: for axes and indices that don't exist.

    Example:
        >>> x.slice_mesh(gpus=0).to_mesh(x.mesh)             # doctest: +SKIP
    """
    check_own(tensor, "slice_mesh")
    grid = tensor.mesh_meta.grid
    unknown = set(coordinates) - set(grid.names)
    if unknown:
        raise MeshUsageError(
            f"the mesh has no axis {min(unknown)!r}: its axes are {', '.join(map(repr, grid.names))}"
        )
    kept = [_chosen(name, size, coordinates.get(name, slice(None))) for name, size in grid.sizes.items()]
    sizes = {
        name: len(numbers)
        for name, numbers in zip(grid.names, kept, strict=True)
        if not isinstance(coordinates.get(name), int)
    }
    points = list(itertools.product(*map(range, grid.shape)))
    ranks = [grid.ranks[points.index(point)] for point in itertools.product(*kept)]
    return MeshSliceTensor(tensor, tuple(ranks), sizes)


def _chosen(name: str, size: int, selector: int | slice) -> Sequence[int]:
    if isinstance(selector, slice):
        numbers = range(size)[selector]
        if not numbers:
            raise MeshUsageError(f"{name}={selector}: nothing is left of an axis of {size}")
        return numbers
    if isinstance(selector, bool) or not isinstance(selector, int) or not -size <= selector < size:
        raise MeshUsageError(f"{name}={selector!r}: the axis has positions 0 to {size - 1}")
    return [selector % size]


def to_mesh(tensor: Tensor, mesh: Any, stream: Any = None) -> Tensor:
    """Copy a tensor's values to another mesh; see `MeshSliceTensor.to_mesh`.

    Example:
        >>> y = monarch_nb.to_mesh(x, other)                 # doctest: +SKIP
    """
    return slice_mesh(tensor).to_mesh(mesh, stream)


def _brought(tensor: Tensor, sources: tuple[int, ...], grid: Grid) -> Tensor:
    """Return a tensor in which each rank of a grid has the value of its source rank."""
    engine, meta = tensor.engine, tensor.mesh_meta
    made = intern(meta.size, contiguous(meta.size), meta.dtype, grid, None)
    if grid.engine is not engine:  # other processes: through this program
        values = engine.fetch(tensor, "each")
        by_rank: list[Any] = [None] * grid.engine.num_ranks
        for rank, source in zip(grid.ranks, sources, strict=True):
            by_rank[rank] = values[source]
        there: Tensor = grid.engine.put(by_rank, grid, None)
        return there
    engine.check_usable(tensor)
    world = engine.grid((engine.num_ranks,), ("all ranks",))
    pairs = tuple(zip(sources, grid.ranks, strict=True))
    args = (Hole(0), world.number, pairs, tuple(meta.size), meta.dtype)
    found: Tensor = engine.own("own.move", args, [tensor.detach()], made)
    return found


def check_own(tensor: Any, what: str) -> None:
    """Raise unless each rank has a value of its own of this tensor.

    Raises:
        WrongTensor: if there are no such values; the error shows how to create them.
    """
    if not hasattr(tensor, "mesh_meta"):
        raise WrongTensor(
            f"{what} takes a tensor of a mesh, not a plain {type(tensor).__name__}: "
            "monarch_nb.replicated(t, mesh) makes one, or torch's functions in `with mesh.activate():`"
        )
    if tensor.is_global:
        raise WrongTensor(
            f"{what} is of values that each rank has of its own; this is one tensor over the mesh "
            f"({tensor.mesh_meta!r}): monarch_nb.redistribute(x, [...]) lays it out anew, "
            "monarch_nb.per_rank(x) makes values of each rank's of it"
        )
    tensor.engine.check_usable(tensor)
