"""An operation on tensors of a mesh, and whether these can be used together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch_nb._tensor.metadata import LENT, READ_ONLY, TAKEN, Grid, Meta
from monarch_nb._tensor.plan import positions, written_names
from monarch_nb._tensor.tensor import Tensor, is_tensor
from monarch_nb.exceptions import DeviceMeshError, MeshError, WrongTensor

if TYPE_CHECKING:
    from monarch_nb._tensor.controller import Engine

_FIX_MESH = "move one of them: monarch_nb.distribute(x.full(), mesh, ...)"


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of an operator on tensors of the mesh.

    Attributes:
        func: the operator.
        args, kwargs: its arguments.
        tensors, scalars: tensors and scalars among them, in order.
    """

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    tensors: Sequence[Tensor]
    scalars: Sequence[float]

    @property
    def meta(self) -> Meta:
        """The metadata of the first tensor; all tensors of an operation are of one mesh."""
        found = self.tensors[0].mesh_meta
        return found.on(found.grid.free)

    @property
    def written(self) -> list[Tensor]:
        """The tensors that it changes."""
        where = positions(self.func, self.args, self.kwargs, is_tensor)
        return [self.tensors[n] for name in written_names(self.func) for n in where.get(name, ())]


def check_together(op: Operation, engine: Engine) -> None:
    """Check that an operation's tensors can be used together, on an engine's mesh.

    Raises:
        WrongTensor: if they can't; it says what to type.
        DeviceMeshError: if some were lost.
    """
    func, tensors = op.func, op.tensors
    metas = [t.mesh_meta for t in tensors]
    grids = {m.grid for m in metas}
    for grid in grids:
        if grid.base not in engine.grids:
            raise lost_or_foreign(func, grid, engine)
    if len({grid.base for grid in grids}) > 1:
        raise WrongTensor(
            f"WRONG_MESH: {func} on tensors of different meshes: {', '.join(map(repr, grids))}; {_FIX_MESH}"
        )
    if len({m.placements is None for m in metas}) > 1:
        raise WrongTensor(
            f"{func} on a tensor that is one over the whole mesh, and one of which each rank has "
            f"its own ({', '.join(map(repr, metas))}): make them alike with "
            "monarch_nb.as_global(x, [...]) or monarch_nb.per_rank(y)"
        )
    where = positions(func, op.args, op.kwargs, is_tensor)
    check_access(func, metas, [t.mesh_meta for t in op.written])
    for name in written_names(func):
        if any(tensors[n].mesh_meta.is_copy for n in where.get(name, ())):
            raise WrongTensor(
                f"{func} would write into a view of a sharded tensor that had to be laid out "
                "anew, so its base wouldn't see it. Write out of place: x = torch.where(...), "
                "torch.cat(...), or y = view.clone(); y.add_(...)"
            )


def check_access(what: Any, metas: Sequence[Meta], written: Sequence[Meta]) -> None:
    """Raise if tensors are on different streams, or are borrowed so that the operation isn't permitted.

    Args:
        written: the metadata of tensors that the operation changes.
    """
    streams = sorted({m.grid.stream for m in metas})
    if len(streams) > 1:
        raise WrongTensor(
            f"WRONG_STREAM: {what} on tensors of different streams: {', '.join(map(repr, streams))}; bring "
            "one over: borrowed, borrow = stream.borrow(x)"
        )
    if any(m.grid.access == TAKEN for m in metas):
        raise WrongTensor(
            f"BORROWED: {what} on a tensor that another stream has borrowed to change it; it can be used "
            "again after borrow.drop()"
        )
    if any(m.grid.access == LENT for m in written):
        raise WrongTensor(
            f"BORROWED: {what} would change a tensor that another stream has borrowed; it can be changed "
            "after borrow.drop()"
        )
    if any(m.grid.access == READ_ONLY for m in written):
        raise WrongTensor(
            f"MUTATING_BORROW: {what} would change a tensor that was borrowed to be read; borrow it so: "
            "stream.borrow(x, mutable=True)"
        )


def lost_or_foreign(func: Any, grid: Grid, engine: Engine) -> MeshError:
    """Return the error of an operation on a tensor whose grid the engine doesn't have."""
    if grid.engine is not engine:
        return WrongTensor(f"WRONG_MESH: {func} on tensors of different meshes; {_FIX_MESH}")
    return DeviceMeshError(
        "this tensor was lost with a rank of its mesh, which was healed since: make it again, from a "
        "checkpoint or from the start"
    )
