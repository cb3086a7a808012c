"""A dry run as one tensor over all ranks, with DTensor's rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate
from torch.utils import _pytree as pytree

from monarch_nb._parallel.attributes import Left
from monarch_nb._parallel.dry.following import Following, Shared, Step, is_bookkeeping, is_same, scalars_of
from monarch_nb._parallel.dry.outcome import CantFollow, Found, Out, Shape
from monarch_nb._parallel.dry.values import Dry, Lay, as_mean, in_order, is_dry, is_everywhere, spec
from monarch_nb._parallel.rules import (
    is_by_rows,
    is_part,
    is_shaping,
    is_uniform,
    reason_of,
    row_dim,
    row_layout,
)
from monarch_nb._rank.tensor.losses import SUM, is_mean_of_rows
from monarch_nb._rank.tensor.own_losses import counts_rows, means_by
from monarch_nb._rank.tensor.private import restride
from monarch_nb._tensor.arguments import plain_arguments
from monarch_nb._tensor.metadata import Meta, intern
from monarch_nb._tensor.place import Place, users_frame
from monarch_nb._tensor.plan import IN_PLACE_VIEWS


class WholeRun(Following):
    """The dispatch mode that follows the forward as one tensor over all ranks."""

    def __init__(
        self,
        shared: Shared,
        whole: Sequence[str],
        rows: int,
        steps: Sequence[Step] | None,
        strides: Mapping[str, Sequence[Sequence[tuple[int, ...]]]] | None = None,
    ) -> None:
        super().__init__(shared, whole, rows)
        self._steps = steps
        self._strides = {path: iter(calls) for path, calls in (strides or {}).items()}
        self._at = 0
        self._trusted = 0
        """Number of enclosing layers that were tested with values."""
        self.inputs: dict[str, Any] = {}
        self.assigned: tuple[str, ...] = ()
        self.counts_rows = False

    @contextmanager
    def _around(self) -> Iterator[None]:
        with super()._around(), means_by(self._loss):
            yield

    def _loss(self, by_torch: Any, given: dict[str, Any]) -> Any:
        """Follow a loss that is the mean of rows: ranks have one each, see `own_losses`."""
        total = by_torch(**{**given, "reduction": SUM})
        if not is_dry(total) or not total.mesh_meta.placements[0].is_partial():
            return total
        self.counts_rows |= counts_rows(given)
        return Lay.apply(total, Partial("avg"))

    def left(self, attributes: Left, buffers: Sequence[str], state: Mapping[str, torch.Tensor]) -> None:
        """Check that this program can do without what was set.

        Raises:
            CantFollow: if tensors of the batch, or of parameters, are left in attributes, or in buffers what
                differs between ranks.
        """
        own = [*map(id, state.values())]  # recurrent layers keep a list of their parameters
        for name, tensors in attributes.tensors.items():
            new = [each for each in tensors if id(each) not in own]
            if any(each.requires_grad or not is_everywhere(each) for each in new):
                raise CantFollow(f"it sets {name} to a tensor, which this program may read")
        for name in buffers:
            if not is_everywhere(state[name]):
                raise CantFollow(f"it sets the buffer {name} to a tensor of the batch")
        self.assigned = tuple(buffers)

    def enter(self, path: str, args: Any, kwargs: Any) -> None:
        """Record the arguments of a layer."""
        self._trusted += path in self._shared.fine
        self.inputs[path] = pytree.tree_map(spec, (args, kwargs))

    def leave(self, path: str, output: Any) -> Any:
        """Set the layout of the output of a layer that was tested with random values."""
        dims = self._shared.fine.get(path)
        if dims is None:
            return output
        self._trusted -= 1
        leaves, structure = pytree.tree_flatten(output)
        strides = next(self._strides.get(path, iter(())), [()] * len(dims))
        rest = zip(dims, strides, strict=True)
        return pytree.tree_unflatten([self._as_tried(x, rest) for x in leaves], structure)

    def _as_tried(self, value: Any, rest: Iterator[tuple[int | None, tuple[int, ...]]]) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dim, stride = next(rest)
        layout = Replicate() if dim is None else row_layout(dim)
        return Lay.apply(value, layout, in_order(value.shape, stride)) if is_dry(value) else value

    def _dry(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, layout: Any) -> Dry:
        return Dry(intern(size, stride, dtype, self._shared.grid, (layout,)))

    def value(self, plain: torch.Tensor) -> torch.Tensor:
        return self._dry(plain.shape, plain.stride(), plain.dtype, Replicate())

    def given(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dim = row_dim(value, self._rows)
        layout = Replicate() if dim is None else row_layout(dim)
        return self._dry(value.shape, value.stride(), value.dtype, layout)

    def gather(self, value: Any) -> Any:
        return Lay.apply(value, Replicate()) if is_dry(value) else value

    def own(self, value: Any) -> Any:
        return (
            Lay.apply(value, row_layout()) if self._is_batch(value, self._rows) and is_dry(value) else value
        )

    def out(self, value: torch.Tensor, on_rank: torch.Tensor) -> Out:
        """Return the description of an output tensor."""
        shape = Shape(tuple(value.shape), tuple(value.stride()), value.dtype)
        layout = value.mesh_meta.placements[0] if is_dry(value) else Replicate()
        return Out(shape, layout, on_rank.requires_grad)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        step = None
        if self._steps is not None and not self._is_unseen and not is_bookkeeping(func):
            step = self._steps[self._at] if self._at < len(self._steps) else None
            self._at += 1
            if step is None or not is_same(step.func, func):
                self._found(func, "the shape of a part of the batch leads to other operations")
        if not any(map(is_dry, pytree.tree_leaves((args, kwargs)))):
            return self._plain(func, args, kwargs, step)
        return self._follow(func, args, kwargs, step)

    def checks(self) -> bool:
        """Say whether operations are compared with those of a rank."""
        return not self._depth and not self._trusted

    def check(self, func: Any, args: Any, kwargs: Any, parts: Sequence[Meta | None], step: Step) -> None:
        """Check an operation further; the base class does nothing."""

    def _found(self, func: Any, reason: str) -> None:
        raise Found(self.path, str(func), reason, Place(*users_frame(), ""))

    def _plain(self, func: Any, args: Any, kwargs: Any, step: Step | None) -> Any:
        """Execute an operation that creates a tensor without tensors as input. What it makes is without
        numbers, as it is for `LocalRun`; only constants keep theirs.
        """
        result = func(*args, **kwargs)
        if not isinstance(result, torch.Tensor):
            return result
        layout = Replicate() if step is None or not self.checks() else self._plain_layout(func, result, step)
        if result.numel() < 2 and layout.is_replicate():
            return result
        return self._dry(result.shape, result.stride(), result.dtype, layout)

    def _plain_layout(self, func: Any, result: torch.Tensor, step: Step) -> Any:
        dims = [n for n, (a, b) in enumerate(zip(result.shape, step.sizes[0], strict=True)) if a != b]
        if not dims:
            return Replicate()
        is_split = len(dims) == 1 and result.shape[dims[0]] == step.sizes[0][dims[0]] * self._shared.num_ranks
        if not is_split or not is_uniform(func):
            self._found(func, "what it makes depends on the size of the batch")
        return row_layout(dims[0])

    def _follow(self, func: Any, args: Any, kwargs: Any, step: Step | None) -> Any:
        view = IN_PLACE_VIEWS.get(func)
        if view is None or not is_dry(args[0]):
            return self._followed(func, args, kwargs, step)
        changed, meta = args[0], self._followed(view, args, kwargs, step).mesh_meta
        changed.mesh_meta = meta
        restride(changed, meta.size, meta.stride, meta.offset)
        return changed

    def _followed(self, func: Any, args: Any, kwargs: Any, step: Step | None) -> Any:
        args, kwargs = pytree.tree_map(self._adopted, (args, kwargs))
        if func is torch.ops.aten.cat.default:  # torch leaves out what has no dimensions to be joined
            args = ([x for x in args[0] if x.shape != (0,)] or args[0], *args[1:])
        first = next(x for x in pytree.tree_leaves((args, kwargs)) if is_dry(x)).mesh_meta
        parts, moved = self._parts(func, args, kwargs, first)
        if step is not None and self.checks():
            self.check(func, args, kwargs, parts, step)
            if moved:
                self._found(func, moved)
            if not is_shaping(func) and scalars_of(args, kwargs) != step.scalars:
                self._found(func, "it's called with another number for a part of the batch")
            sizes = tuple(self._on_rank(p) for p in parts if p is not None)
            if sizes != step.sizes:
                self._found(func, f"a part of the batch gives {step.sizes}, not {sizes}")
        return self._result(func, args, parts)

    def _adopted(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not is_dry(value):
            return self._dry(value.shape, value.stride(), value.dtype, Replicate())
        return value

    def _parts(self, func: Any, args: Any, kwargs: Any, first: Meta) -> tuple[list[Meta | None], str]:
        """Return the results of an operation, computed once for all identical operations."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        key = (func, structure, *((x.mesh_meta if is_dry(x) else (type(x), x)) for x in leaves))
        if key not in self._shared.outcomes:
            self._shared.outcomes[key] = self._new_parts(func, args, kwargs, first)
        found: tuple[list[Meta | None], str] = self._shared.outcomes[key]
        return found

    def _new_parts(self, func: Any, args: Any, kwargs: Any, first: Meta) -> tuple[list[Meta | None], str]:
        """Return the results of an operation, and why ranks can't execute it on their parts ("" if they
        can).
        """
        if is_by_rows(func, args, kwargs):
            shapes = self._shared.propagation.per_rank(func, args, kwargs, self._shared.grid).parts
            layout = args[0].mesh_meta.placements
            return [p and p.with_layout(layout) for p in shapes], ""
        outcome = self._shared.propagation.over_grid(func, *plain_arguments(func, args, kwargs), first)
        if is_mean_of_rows(func, args):
            outcome = replace(outcome, parts=tuple(map(as_mean, outcome.parts)))
        if outcome.is_unknown:
            raise CantFollow(f"{func} gives a shape that depends on numbers ({Place(*users_frame(), '')})")
        if outcome.moves:
            return list(outcome.parts), outcome.moves
        inputs = [x.mesh_meta for x in pytree.tree_leaves((args, kwargs)) if is_dry(x)]
        is_split = any(not m.placements[0].is_replicate() for m in inputs)
        if outcome.is_whole and is_split and not self._shared.propagation.is_random(func, args, kwargs):
            return list(outcome.parts), outcome.reason or reason_of(func)
        return list(outcome.parts), ""

    def _on_rank(self, meta: Meta) -> tuple[int, ...]:
        size, (layout,) = list(meta.size), meta.placements or ()
        if is_part(layout):
            size[layout.dim] //= self._shared.num_ranks
        return tuple(size)

    def _result(self, func: Any, args: Any, parts: Sequence[Meta | None]) -> Any:
        written = func._schema.arguments
        if func._schema.returns and written and written[0].alias_info and written[0].alias_info.is_write:
            return args[0]
        made = [None if p is None else Dry(p) for p in parts]
        returns = func._schema.returns
        if not returns:
            return None
        if len(returns) == 1 and "[]" not in str(returns[0].type) and "List" not in str(returns[0].type):
            return made[0]
        return list(made) if len(returns) == 1 else tuple(made)
