"""A mesh of processes that holds tensors: the single-tensor view.

Example:
    >>> from monarch_nb.distributed import Mesh               # doctest: +SKIP
    >>> mesh = Mesh(shape=(4, 2), mesh_dim_names=("data_parallel", "model_parallel"))  # doctest: +SKIP
    >>> spec = ["data_parallel", None]                        # doctest: +SKIP
    >>> dt = monarch_nb.distribute(torch.randn(8, 6), mesh, sharding_spec=spec)  # doctest: +SKIP
    >>> (dt @ dt.T).full()                                    # doctest: +SKIP
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from monarch_nb._tensor import groups
from monarch_nb._tensor.engines import check_alive, close_engine, engine_of, ranks_of
from monarch_nb._tensor.metadata import Grid
from monarch_nb._tensor.remote import execute
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.actor import HealReport, ProcMesh, this_host
from monarch_nb.actor.active import activate, get_active_mesh
from monarch_nb.exceptions import MeshUsageError

if TYPE_CHECKING:
    from monarch_nb._sync import SyncReceipt

START_S = 120.0
IMPORTS = ("monarch_nb._tensor.worker", "torch._dynamo")
"""What ranks execute commands with: DTensor, and what that imports at its first use. It takes two seconds."""


class Mesh:
    """A grid of processes with named axes, over which tensors are laid out.

    Where a mesh is active (`with mesh.activate():`) or given, its processes are used; otherwise processes are
    started on this machine, which end with this program.

    Args:
        shape: size of each axis.
        mesh_dim_names: a name for each; by default `dim_0` and so on.
        procs: processes to take, as many as the shape has points.

    Raises:
        MeshUsageError: for sizes below 1, names that don't fit, and if the processes that are there aren't as
            many.
        RequestFailed: if this machine has no room for so many.
    """

    def __init__(
        self,
        shape: Sequence[int] | int,
        mesh_dim_names: Sequence[str] | None = None,
        *,
        procs: ProcMesh | None = None,
    ) -> None:
        self._shape = _checked_shape(shape)
        self._names = _checked_names(mesh_dim_names, self._shape)
        found = procs if procs is not None else _active()
        if found is not None and found.size() != math.prod(self._shape):
            raise MeshUsageError(
                f"a mesh of shape {self._shape} needs {math.prod(self._shape)} ranks; {found!r} has "
                f"{found.size()}. Give a shape of {found.size()} points, or start more"
            )
        self._owns = found is None
        self._procs = found if found is not None else _started(self._shape)

    # --- description

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""
        return self._shape

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        """Name of each axis."""
        return self._names

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def procs(self) -> ProcMesh:
        """Its processes: for actors, functions and buffers."""
        return self._procs

    def size(self, axis: str | int | None = None) -> int:
        """Return how many ranks it has; or how many along an axis, given by name or number.

        Raises:
            MeshUsageError: for an axis that isn't there.
        """
        if axis is None:
            return math.prod(self._shape)
        if isinstance(axis, int) and -self.ndim <= axis < self.ndim:
            return self._shape[axis]
        if axis in self._names:
            return self._shape[self._names.index(str(axis))]
        raise MeshUsageError(
            f"the mesh has no axis {axis!r}: its axes are {', '.join(map(repr, self._names))}"
        )

    def __len__(self) -> int:
        return self.size()

    def tensor_grid(self) -> Grid:
        """Return the grid over which tensors are laid out."""
        check_alive(self._procs, "tensors")
        return engine_of(self._procs).grid(self._shape, self._names, ranks_of(self._procs))

    def rank_tensor(self, dim: str) -> Tensor:
        """Return a tensor with a value of each rank's own: its place along an axis."""
        return groups.rank_tensor(self, dim)

    def rank_tensors(self) -> dict[str, Tensor]:
        """Return the ranks' places along all axes, by name."""
        return groups.rank_tensors(self)

    def process_group(self, dims: Sequence[str] | str) -> groups.RemoteProcessGroup:
        """Return the process groups along axes, for functions that ranks call."""
        return groups.process_group(self, dims)

    # --- work

    def execute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on each rank with tensors of this mesh among the arguments; wait until all have
        returned.

        Tensors that are global are DTensors in the function, those of which each rank has its own are plain
        there. A plain tensor of this program is the same on every rank.

        Returns:
            What the function returns: tensors stay on the ranks; anything else comes here, as a list by rank
            unless all ranks agree.

        Raises:
            RemoteException: (a DeviceMeshError) if it raises on a rank.
            SupervisionError: (a DeviceMeshError) if a rank is dead.

        Example:
            >>> try:                                     # doctest: +SKIP
            ...     doubled = mesh.execute(lambda x: x * 2, batch)
            ... except DeviceMeshError:
            ...     mesh = monarch_nb.heal_mesh(mesh)
        """
        return execute(self, function, args, kwargs)

    def sync(self, *folders: str | os.PathLike[str]) -> SyncReceipt:
        """Have this program and all ranks run the present code of their modules' files. Objects keep their
        identity and state; a module on the ranks runs its new `forward`.

        Args:
            folders: what other hosts are to be sent before that; by default the repository that this program
                works in, or else its working directory. Hosts that share a file system are sent nothing.

        Raises:
            MeshUsageError: if a folder isn't there.

        Example:
            >>> mesh.sync()                              # doctest: +SKIP
            model.py reloaded on ranks 0-3 (class Net)
        """
        return self._procs.host_mesh.synced(folders, auto_reload=True)

    # --- life

    def healthy(self) -> bool:
        """Say whether all its processes run, and nothing is being healed."""
        return self._procs.healthy()

    def heal(self, *, timeout_s: float = 120.0) -> HealReport:
        """Repair the losses of the mesh: dead ranks are restarted. Tensors of which other ranks have all
        parts are as they were; others are lost, and must be created again.

        Raises:
            HealError: if something couldn't be put back.
        """
        return self._procs.heal(timeout_s=timeout_s)

    def activate(self) -> Any:
        """Use it as the active mesh within a `with` block: tensors created there belong to this mesh, with a
        value of each rank's own.
        """
        return activate(self)

    def stop(self) -> None:
        """End its processes, if it has started them."""
        close_engine(self._procs)
        if self._owns:
            self._procs.stop().get()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in zip(self._names, self._shape, strict=True))
        return f"<Mesh {axes}>"


def _checked_shape(shape: Any) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape) if isinstance(shape, Sequence) else None
    if not sizes or not all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes
    ):
        raise MeshUsageError(f"shape is the size of each axis, each at least 1, as in (4, 2); not {shape!r}")
    return sizes


def _checked_names(names: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    if names is None:
        return tuple(f"dim_{n}" for n in range(len(shape)))
    given = (names,) if isinstance(names, str) else tuple(names)
    if (
        len(given) != len(shape)
        or len(set(given)) != len(given)
        or not all(isinstance(n, str) and n for n in given)
    ):
        raise MeshUsageError(
            f"mesh_dim_names has a different name for each of {len(shape)} axes, as in "
            f"('data_parallel', 'model_parallel')[:{len(shape)}]; not {names!r}"
        )
    return given


def _active() -> ProcMesh | None:
    found = get_active_mesh()
    procs = getattr(found, "procs", found)
    return procs if isinstance(procs, ProcMesh) else None


def _started(shape: tuple[int, ...]) -> ProcMesh:
    procs = this_host().spawn_procs({"ranks": math.prod(shape)}, name="tensors", imports=IMPORTS)
    from monarch_nb._parallel import module  # noqa: F401 - what a model needs; ranks are starting meanwhile

    procs.initialized.get(START_S)
    return procs
