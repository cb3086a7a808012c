"""Modules whose parameters are tensors of a mesh. Autograd and optimiser run on the controller; all ranks
execute each operation on their parts.

Exact: what it computes is what one process would compute, whatever the layout. A loop that was written for
one device doesn't change.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.tensor_parallel import WHOLE_RESULTS, dims_of
from monarch_nb._tensor.distribute import laid_out, relaid
from monarch_nb._tensor.engines import grid_of
from monarch_nb._tensor.metadata import Grid, Placements
from monarch_nb._tensor.plans import TENSOR_AXES, checked_plan
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.exceptions import MeshUsageError, WrongTensor

M = TypeVar("M", bound=nn.Module)
STRATEGIES = ("ddp", "fsdp", "tp")
DATA_AXES = ("dp", "data", "ddp", "fsdp", "batch")


def module_to_mesh(
    module: M, mesh: Any, *, strategy: str | None = None, tp_plan: Mapping[str, str] | None = None
) -> M:
    """Return a copy of a module whose parameters and buffers are on a mesh. The module itself stays
    unchanged.

    Plain tensors among the module's inputs are split along their first dimension over the data axis, if it's
    divisible; inputs in any other layout work, too: see `distribute`.

    Args:
        module: any module whose parameters have values.
        mesh: a `monarch_nb.distributed.Mesh`, or any other mesh. Its data axis is the one called `data...`,
            `dp`, `ddp`, `fsdp` or `batch...`, else the first.
        strategy: "ddp" (the default): every rank has all parameters. "fsdp": parameters, gradients and the
            optimiser's state are split along their first dimension over the data axis, and gathered for the
            operations that need whole tensors. "tp": layers of `tp_plan` are split over the axis called `tp`,
            `tensor...` or `model...`, else the last one; results are right by any plan.
        tp_plan: style by path of a layer, as in `{"layers.*.up": "colwise", "layers.*.down": "rowwise"}`; `*`
            stands for any one name. `parallelize` finds one by itself.

    Raises:
        MeshUsageError: for an unknown strategy, layer or style, or a module with parameters on `meta`.

    Example:
        >>> model = monarch_nb.module_to_mesh(SimpleTransformer(), mesh)  # doctest: +SKIP
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)    # doctest: +SKIP
        >>> loss = criterion(model(inputs), targets)                      # doctest: +SKIP
        >>> loss.backward()                                               # doctest: +SKIP
        >>> optimizer.step()                                              # doctest: +SKIP
    """
    check_module(module)
    if strategy not in (None, *STRATEGIES):
        raise MeshUsageError(f"strategy is one of {', '.join(map(repr, STRATEGIES))}; not {strategy!r}")
    if (strategy == "tp") != (tp_plan is not None):
        raise MeshUsageError(
            'strategy="tp" and tp_plan={"up": "colwise", "down": "rowwise"} belong together; '
            "monarch_nb.parallelize(module, mesh, 'tp', sample=batch) finds a plan"
        )
    grid = grid_of(mesh)
    if tp_plan is not None:
        return _split_by_plan(module, grid, checked_plan(module, tp_plan))
    axis = data_axis(grid)
    made = copied(module, grid, lambda each: _layout(each, grid, axis if strategy == "fsdp" else None))
    made.register_forward_pre_hook(_Inputs(grid, axis), with_kwargs=True)
    return made


def _split_by_plan(module: M, grid: Grid, plan: Mapping[str, str]) -> M:
    named = [n for n, name in enumerate(grid.names) if name.lower().startswith(TENSOR_AXES)]
    axis = named[0] if named else len(grid.shape) - 1
    by_name = dims_of(module, plan)
    dims = {id(p): by_name[n] for n, p in module.named_parameters() if n in by_name}

    def layout(each: nn.Parameter) -> Placements:
        dim = dims.get(id(each))
        return tuple(
            Shard(dim) if n == axis and dim is not None else Replicate() for n in range(len(grid.shape))
        )

    made = copied(module, grid, layout)
    for path, style in plan.items():
        if style in WHOLE_RESULTS:
            made.get_submodule(path).register_forward_hook(_Result(axis))
    others = [n for n in range(len(grid.shape)) if n != axis]
    data = data_axis(grid) if data_axis(grid) != axis else others[0] if others else None
    made.register_forward_pre_hook(_Inputs(grid, data), with_kwargs=True)
    return made


def copied(module: M, grid: Grid, layout: Callable[[nn.Parameter], Placements]) -> M:
    """Return a copy of a module whose parameters have the layout that `layout` returns, and whose layers are
    named in errors that occur in them.
    """
    memo: dict[int, Any] = {}
    for each in module.parameters():
        memo[id(each)] = _parameter(each, grid, layout(each))
    for buffer in module.buffers():
        memo[id(buffer)] = grid.engine.put(buffer, grid, grid.replicated)
    made = copy.deepcopy(module, memo)
    for path, layer in made.named_modules():
        _Layer(grid, path, layer).install()
    return made


def data_axis(grid: Grid) -> int:
    """Return the axis over which batches are split."""
    speaking = (n for n, name in enumerate(grid.names) if name.lower().startswith(DATA_AXES))
    return next(speaking, 0)


def check_module(module: Any) -> None:
    """Raise unless a module can be put on a mesh.

    Raises:
        WrongTensor: if it isn't a module.
        MeshUsageError: if it's on a mesh already, or has parameters without values.
    """
    if not isinstance(module, nn.Module):
        raise WrongTensor(f"module_to_mesh takes a torch.nn.Module, not {type(module).__name__}")
    for name, each in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(each, Tensor):
            raise MeshUsageError(
                f"{name} is on a mesh already: module_to_mesh takes a module of this process"
            )
        if each.is_meta or isinstance(each, nn.parameter.UninitializedTensorMixin):
            raise MeshUsageError(
                f"{name} has no numbers yet: build the module on the CPU, or "
                "module.to_empty(device='cpu') and initialise it, (a lazy one: call it once) before "
                "module_to_mesh"
            )


def _parameter(plain: nn.Parameter, grid: Grid, placements: Placements) -> nn.Parameter:
    made = nn.Parameter(grid.engine.put(plain, grid, placements), plain.requires_grad)
    if plain.requires_grad:
        made.register_hook(_Gradient(made))
    return made


def _layout(plain: nn.Parameter, grid: Grid, axis: int | None) -> Placements:
    splits = axis is not None and plain.dim() > 0 and plain.shape[0] >= grid.shape[axis]
    return _split(grid, axis) if splits and axis is not None else grid.replicated


def _split(grid: Grid, axis: int) -> Placements:
    return tuple(Shard(0) if n == axis else Replicate() for n in range(len(grid.shape)))


class _Hook:
    """A hook of a module that stays with its mesh: copies of the module share it, and it isn't saved."""

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> Any:
        return _nothing, ()


class _Nothing:
    def __call__(self, *_: Any) -> None:
        """Do nothing: this replaces a hook in a pickled module."""


def _nothing() -> _Nothing:
    return _Nothing()


class _Gradient(_Hook):
    """The autograd function that lays a gradient out as its parameter: summed over the ranks, once."""

    def __init__(self, parameter: Any) -> None:
        self._parameter = weakref.ref(parameter)

    def __call__(self, gradient: Any) -> Any:
        found = self._parameter()
        if found is not None and isinstance(gradient, Tensor) and gradient.placements != found.placements:
            return laid_out(gradient, found.placements)
        return gradient


class _Inputs(_Hook):
    """The hook that splits plain inputs over the data axis."""

    def __init__(self, grid: Grid, axis: int | None) -> None:
        self._grid = grid
        self._axis = axis

    def __call__(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        return pytree.tree_map(self._one, args), pytree.tree_map(self._one, dict(kwargs))

    def _one(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, Tensor):
            return value
        if self._axis is None:
            return brought(value, self._grid, self._grid.replicated)
        size = self._grid.shape[self._axis]
        splits = value.dim() > 0 and value.shape[0] and value.shape[0] % size == 0
        placements = _split(self._grid, self._axis) if splits else self._grid.replicated
        return brought(value, self._grid, placements)


class _Result(_Hook):
    """The hook that makes the result of a layer whole along an axis, as the styles of torch do."""

    def __init__(self, axis: int) -> None:
        self._axis = axis

    def __call__(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or output.placements is None:
            return output
        whole = [Replicate() if n == self._axis else each for n, each in enumerate(output.placements)]
        return relaid(output, tuple(whole))


def brought(value: torch.Tensor, grid: Grid, placements: Placements) -> Tensor:
    """Return a plain tensor put on the mesh in a layout; its gradient comes back as a plain tensor."""
    if value.requires_grad:
        found: Tensor = _Adopt.apply(value, grid, placements)
        return found
    return adopt(value, grid, placements)


def adopt(value: torch.Tensor, grid: Grid, placements: Placements) -> Tensor:
    """Return a plain tensor put on the mesh in a layout; the same object as long as the plain tensor is
    unchanged.
    """
    found: Tensor = grid.engine.adopt(value, grid, placements)  # in another layout, if it was sent in that
    return found if found.placements == placements else laid_out(found, placements)


class _Adopt(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function that makes the gradient of a plain input plain."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, grid: Grid, placements: Placements) -> Any:
        """Put the tensor on the mesh."""
        return adopt(value, grid, placements).detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Fetch the gradient as a plain tensor."""
        return _Fetch.apply(gradients[0]), None, None


class _Fetch(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function that brings a tensor of the mesh here."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> torch.Tensor:
        """Return it as a plain one."""
        ctx.grid = value.mesh_meta.grid
        return value.full()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Put the gradient on the mesh."""
        return adopt(gradients[0], ctx.grid, ctx.grid.replicated)


class _Layer(_Hook):
    """The hook that records which layer's forward runs, to name the layer in failures."""

    def __init__(self, grid: Grid, path: str, layer: nn.Module) -> None:
        self._engine = grid.engine
        self._layer = layer
        self._name = f"{path or 'the module'} ({type(layer).__name__})"
        self._outer: list[str] = []

    def install(self) -> None:
        """Install the hooks on the layer."""
        self._layer.register_forward_pre_hook(self)
        self._layer.register_forward_hook(_Leave(self), always_call=True)

    def __call__(self, _module: nn.Module, _args: Any) -> None:
        self._outer.append(self._engine.module)
        self._engine.module = self._name

    def leave(self) -> None:
        """Record that the layer's forward has returned or raised: the enclosing layer is the current one
        again.
        """
        self._engine.module = self._outer.pop() if self._outer else ""


class _Leave(_Hook):
    def __init__(self, layer: _Layer) -> None:
        self._layer = layer

    def __call__(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self._layer.leave()
