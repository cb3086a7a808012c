"""Proves that a plan of tensor parallelism computes what one process would, without values.

The forward is followed twice over shapes alone: as one rank sees it, with its parts of the split layers, and
as one tensor over the ranks that share them, with DTensor's rules. Split layers are by definition right if
their input lies as they want it. Between them each operation on parts has to be the part of the operation on
all, without anything sent; and what every rank has whole may not get a gradient of which ranks have shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.utils import _pytree as pytree

from monarch_nb._parallel.dry.following import Shared, Step
from monarch_nb._parallel.dry.local import LocalRun
from monarch_nb._parallel.dry.outcome import CantFollow, Found, LocalMismatch
from monarch_nb._parallel.dry.runner import DryRunner
from monarch_nb._parallel.dry.values import Dry, Lay, is_dry
from monarch_nb._parallel.dry.whole import WholeRun
from monarch_nb._parallel.rules import is_part, row_dim
from monarch_nb._rank.tensor.protocol import Divided, SplitLayer, TensorPlan
from monarch_nb._rank.tensor.tensor_parallel import GATHERED, SHARED, dims_of
from monarch_nb._tensor.metadata import Meta, contiguous, intern


class Unproven(Exception):
    """The error of a plan that can't be shown to be right.

    Attributes:
        path: the layer at which the ranks would do something else.
        reason: why, in words.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path or 'the module'}: {reason}")
        self.path, self.reason = path, reason


@dataclass(slots=True)
class Proof:
    """A plan that is right, and what a forward costs a rank.

    Attributes:
        forward_bytes, backward_bytes: of activations, and of their gradients, that are summed over the ranks.
        gathered_bytes: of results that are gathered.
        num_forward, num_backward: how many collectives there are.
        num_flops, saved_bytes: see `DryRun`.
    """

    plan: TensorPlan
    forward_bytes: int = 0
    backward_bytes: int = 0
    gathered_bytes: int = 0
    num_forward: int = 0
    num_backward: int = 0
    num_flops: int = 0
    saved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Way:
    """A plan to be proven.

    Attributes:
        module: the module that it's for.
        styles: style by path of a layer.
        divided: attributes with other values on ranks.
        num_parts: number of ranks that share the layers.
    """

    module: nn.Module
    styles: Mapping[str, str]
    divided: Sequence[Divided]
    num_parts: int


class _OnRank(LocalRun):
    """The forward as one rank sees it."""

    def __init__(self, shared: Shared, whole: Sequence[str], rows: int, way: Way) -> None:
        super().__init__(shared, whole, rows)
        self._way = way
        self._inside = 0
        self.proof = Proof(TensorPlan(()))
        dims = dims_of(way.module, way.styles)
        self._dims = {id(p): dims[n] for n, p in way.module.named_parameters() if n in dims}

    def value(self, plain: torch.Tensor) -> torch.Tensor:
        dim = self._dims.get(id(plain))
        if dim is None:
            return super().value(plain)
        size = list(plain.shape)
        size[dim] //= self._way.num_parts
        return super().value(torch.empty(size, dtype=plain.dtype, device="meta"))

    def enter(self, path: str, args: Any, kwargs: Any) -> None:
        style = self._way.styles.get(path, SHARED)
        if style == SHARED:
            return
        self._inside += 1
        first = args[0] if args else None
        self._check_input(path, style, first)
        if style != "rowwise" and isinstance(first, torch.Tensor) and first.requires_grad:
            self.proof.backward_bytes += _bytes(first)
            self.proof.num_backward += 1

    def _check_input(self, path: str, style: str, value: Any) -> None:
        layer = self._way.module.get_submodule(path)
        if not isinstance(layer, nn.Linear) or not isinstance(value, torch.Tensor):
            return
        wanted = layer.in_features // (self._way.num_parts if style == "rowwise" else 1)
        if value.shape[-1] == wanted:
            return
        source = "parts, as a 'colwise' layer gives them" if style == "rowwise" else "a whole input"
        raise Unproven(path, f"{style!r} takes {source}: {wanted} features; its input has {value.shape[-1]}")

    def leave(self, path: str, output: Any) -> Any:
        style = self._way.styles.get(path, SHARED)
        if style == SHARED or not isinstance(output, torch.Tensor):
            return output
        self._inside -= 1
        self.proof.num_forward += style != "colwise"
        if style == "rowwise":
            self.proof.forward_bytes += _bytes(output)
        if style != GATHERED:
            return output
        self.proof.gathered_bytes += _bytes(output) * self._way.num_parts
        return self._unseen(lambda x: torch.cat([x] * self._way.num_parts, -1), output)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = len(self.steps)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self._inside:  # what split layers do is known
            del self.steps[before:]
        return result


class _OverAll(WholeRun):
    """The forward as one tensor over the ranks that share layers."""

    def __init__(
        self, shared: Shared, whole: Sequence[str], rows: int, way: Way, steps: Sequence[Step], parts: int
    ) -> None:
        super().__init__(shared, whole, rows, steps)
        self._way, self._parts_of_batch = way, parts
        self._inside = 0
        self.dims: dict[str, int] = {}
        """Of layers that every rank has whole: along which dimension their input comes in parts."""
        self.draws = False
        dims = dims_of(way.module, way.styles)
        self._dims = {id(p): dims[n] for n, p in way.module.named_parameters() if n in dims}
        self._split: dict[int, str] = {}

    def state(self, module: nn.Module) -> dict[str, torch.Tensor]:
        state = super().state(module)
        self._split = {id(self.parameters[n]): n for n, p in module.named_parameters() if id(p) in self._dims}
        return state

    def value(self, plain: torch.Tensor) -> torch.Tensor:
        dim = self._dims.get(id(plain))
        layout = Replicate() if dim is None else Shard(dim)
        return self._dry(plain.shape, plain.stride(), plain.dtype, layout)

    def given(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        size = list(value.shape)
        dim = row_dim(value, self._rows)
        if dim is not None:
            size[dim] //= self._parts_of_batch
        stride = value.stride() if tuple(size) == tuple(value.shape) else contiguous(tuple(size))
        made = self._dry(size, stride, value.dtype, Replicate())
        return made.requires_grad_(value.requires_grad)

    def gather(self, value: Any) -> Any:
        if not self._is_batch(value, self._rows // self._parts_of_batch) or not is_dry(value):
            return value
        return _Longer.apply(value, self._parts_of_batch)

    def own(self, value: Any) -> Any:
        rows = self._rows // self._parts_of_batch
        return value.narrow(0, 0, rows) if self._is_batch(value, self._rows) else value

    # --- layers

    def enter(self, path: str, args: Any, kwargs: Any) -> None:
        style = self._way.styles.get(path)
        if style is None:
            return
        layout = _layout_of(args[0]) if args else None
        if layout is None:
            raise Unproven(path, "it's called without a tensor as its first argument")
        if style == SHARED:
            self._enter_shared(path, layout)
            return
        is_split = style == "rowwise" and isinstance(self._way.module.get_submodule(path), nn.Linear)
        if is_split and not (layout.is_shard() and layout.dim == args[0].dim() - 1):
            raise Unproven(path, "'rowwise' takes what a 'colwise' layer gives, and its input is whole")
        if not is_split and not layout.is_replicate():
            raise Unproven(path, f"{style!r} takes a whole input, and gets it in parts")
        self._inside += 1

    def _enter_shared(self, path: str, layout: Any) -> None:
        if layout.is_shard():
            if self.dims.setdefault(path, layout.dim) != layout.dim:
                raise Unproven(path, "its input comes in parts along different dimensions")
        elif path in self.dims:
            raise Unproven(path, "its input is whole at times, and at times comes in parts")

    def leave(self, path: str, output: Any) -> Any:
        style = self._way.styles.get(path, SHARED)
        if style == SHARED or not is_dry(output):
            return output
        self._inside -= 1
        is_split = style == "colwise"
        return Lay.apply(output, Shard(output.dim() - 1) if is_split else Replicate())

    # --- operations

    def checks(self) -> bool:
        return True

    def check(self, func: Any, args: Any, kwargs: Any, parts: Sequence[Meta | None], step: Step) -> None:
        inputs = [x for x in pytree.tree_leaves((args, kwargs)) if is_dry(x)]
        for each in inputs:
            if id(each) in self._split:
                self._found(func, f"{self._split[id(each)]} is used outside of its layer")
        layouts = [p.placements[0] for p in parts if p is not None and p.placements]
        self.draws = self.draws or self._shared.propagation.is_random(func, args, kwargs)
        if any(each.is_partial() for each in layouts):
            self._found(func, "it sums over what is in parts")
        if any(map(is_part, layouts)):
            self._check_gradients(func, inputs)

    def _plain(self, func: Any, args: Any, kwargs: Any, step: Step | None) -> Any:
        self.draws = self.draws or torch.Tag.nondeterministic_seeded in func.tags
        return super()._plain(func, args, kwargs, step)

    def _check_gradients(self, func: Any, inputs: Sequence[Any]) -> None:
        for each in inputs:
            name = self.name_of(each)
            is_shared = self._way.styles.get(self.path) == SHARED and name.startswith(f"{self.path}.")
            if _layout_of(each).is_replicate() and each.requires_grad and not is_shared:
                what = name or "what every rank has whole"
                self._found(func, f"a rank would have a share of the gradient of {what} only")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._inside:
            return super().__torch_dispatch__(func, types, args, kwargs)
        before, self._is_unseen = self._is_unseen, True
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._is_unseen = before


class _Longer(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function that stands for gathering a batch."""

    @staticmethod
    def forward(ctx: Any, value: Dry, num: int) -> Any:
        meta = value.mesh_meta
        size = (meta.size[0] * num, *meta.size[1:])
        return Dry(intern(size, contiguous(size), meta.dtype, meta.grid, meta.placements))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError


@dataclass(slots=True)
class Prover:
    """Proves plans of one module.

    Args:
        num_parts: number of ranks that share layers.
        num_data: number of ranks over which a batch is split.
        whole: layers that run on the whole batch.
    """

    module: nn.Module
    num_parts: int
    num_data: int = 1
    whole: tuple[str, ...] = ()
    _local: DryRunner = field(init=False)
    _over_all: DryRunner = field(init=False)

    def __post_init__(self) -> None:
        self._local = DryRunner(self.module, self.num_data)
        self._over_all = DryRunner(self.module, self.num_parts)

    def prove(
        self, styles: Mapping[str, str], divided: Sequence[Divided], args: Any, kwargs: Any, rows: int
    ) -> Proof:
        """Return the proof that a plan is right.

        Args:
            styles, divided: see `Way`.
            args, kwargs, rows: of a forward: see `DryRunner.run`.

        Raises:
            Unproven: if it isn't right, or can't be shown to be.
            CantFollow: for a forward that can't be followed.
        """
        way = Way(self.module, styles, divided, self.num_parts)
        local = _OnRank(self._local, self.whole, rows, way)
        try:
            with self._as_divided(divided):
                self._run(local, args, kwargs)
            over_all = _OverAll(self._over_all, self.whole, rows, way, local.steps, self.num_data)
            result = self._run(over_all, args, kwargs)
        except Found as error:
            raise Unproven(error.path, f"{error.op}: {error.reason} ({error.place})") from None
        except LocalMismatch as error:
            raise Unproven(error.path, f"{error.op}: {_first_line(error.error)} ({error.place})") from None
        except (CantFollow, Unproven):
            raise
        except Exception as error:  # of the module's own code, with shapes that it doesn't know
            raise Unproven("", f"{type(error).__name__}: {_first_line(error)}") from None
        self._check_results(result)
        return self._proven(local, over_all, styles, divided)

    def _run(self, mode: Any, args: Any, kwargs: Any) -> Any:
        runner = self._local if isinstance(mode, _OnRank) else self._over_all
        return runner.run_in(mode, args, kwargs)

    @contextmanager
    def _as_divided(self, divided: Sequence[Divided]) -> Iterator[None]:
        with ExitStack() as stack:
            for each in divided:
                layer = self.module.get_submodule(each.path)
                stack.callback(setattr, layer, each.attribute, getattr(layer, each.attribute))
                setattr(layer, each.attribute, each.value)
            yield

    def _check_results(self, result: Any) -> None:
        for each in pytree.tree_leaves(result):
            layout = _layout_of(each)
            if layout is not None and not layout.is_replicate():
                raise Unproven(
                    "", "its result comes in parts: the last layer's style is one that gives a whole"
                )

    def _proven(
        self, local: _OnRank, over_all: _OverAll, styles: Mapping[str, str], divided: Sequence[Divided]
    ) -> Proof:
        layers = tuple(
            SplitLayer(path, style, over_all.dims.get(path, 0))
            for path, style in styles.items()
            if style != SHARED or path in over_all.dims
        )
        proof = local.proof
        proof.plan = TensorPlan(layers, tuple(divided), over_all.draws)
        proof.num_flops, proof.saved_bytes = local.num_flops, local.saved_bytes
        return proof


def _bytes(value: torch.Tensor) -> int:
    return int(value.numel() * value.element_size())


def _layout_of(value: Any) -> Any:
    return value.mesh_meta.placements[0] if is_dry(value) else None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
