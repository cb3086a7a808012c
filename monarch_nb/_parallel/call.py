"""A forward and a backward of a module on the ranks, in this program's autograd history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate
from torch.utils import _pytree as pytree

from monarch_nb._parallel.dry.outcome import DryRun, Out
from monarch_nb._rank.tensor.private import keeps_graph
from monarch_nb._rank.tensor.protocol import Hole
from monarch_nb._tensor.metadata import Grid, Placements, contiguous, intern
from monarch_nb._tensor.module import brought
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.exceptions import MeshUsageError


class Caller(Protocol):
    """The module in this program, as far as its calls need it: see `Parallel`."""

    @property
    def grid(self) -> Grid:
        """The ranks that hold the module's tensors."""

    @property
    def shares(self) -> bool:
        """Whether the first axis is that of ranks which share layers."""

    @property
    def unknown(self) -> Any:
        """The metadata for a value that isn't a tensor."""

    def over(self, layout: Any) -> Placements:
        """Return the layout on all axes of what lies so over those of the batch."""


class Call:
    """One forward of a module on the ranks, and its backward."""

    def __init__(
        self,
        parallel: Caller,
        module: Tensor,
        dry: DryRun,
        leaves: list[Any],
        structure: Any,
        flags: tuple[bool, ...],
        grads: bool,
        taking: Sequence[tuple[int, nn.Parameter]],
    ) -> None:
        self._parallel, self._module, self._dry, self._leaves = parallel, module, dry, leaves
        self._structure, self._flags, self._grads = pytree.treespec_dumps(structure), flags, grads
        self._engine, self._grid = parallel.grid.engine, parallel.grid
        self._ran: Tensor | None = None
        tensors = [n for n, x in enumerate(leaves) if isinstance(x, Tensor)]
        self._wanted = tuple(n for n in tensors if leaves[n].requires_grad) if grads else ()
        self.inputs = [leaves[n] for n in self._wanted]
        self._numbers = tuple(n for n, _ in taking)
        self.parameters = [each for _, each in taking]

    def forward(self) -> tuple[Tensor, ...]:
        """Run the forward on the ranks."""
        tensors: list[Any] = [self._module]

        def hole(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            tensors.append(value.detach())
            return Hole(len(tensors) - 1)

        leaves = tuple(map(hole, self._leaves))
        args = (Hole(0), leaves, self._structure, self._flags, self._wanted if self._grads else None)
        self._ran = self._engine.own("own.module_forward", args, tensors, self._parallel.unknown)
        self._leaves = []
        return tuple(self._output(n, out) for n, out in enumerate(self._dry.outputs))

    def without_gradient(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs without an autograd history."""
        return [x for x, out in zip(outputs, self._dry.outputs, strict=True) if not out.wants_gradient]

    def _output(self, number: int, out: Out) -> Tensor:
        layout = self.layout(out)
        meta = intern(out.shape.size, out.shape.stride, out.shape.dtype, self._grid, layout)
        args = (Hole(0), Hole(1), number, layout)
        found: Tensor = self._engine.own("own.module_output", args, [self._module, self._ran], meta)
        return found

    def layout(self, out: Out) -> Placements:
        """Return the layout of an output on all axes."""
        return self._parallel.over(out.layout)

    def backward(self, gradients: Sequence[Any], keeps: bool) -> list[Any]:
        """Run the backward on the ranks."""
        if self._ran is None:
            raise RuntimeError(
                "the backward of this forward has run already: loss.backward(retain_graph=True) keeps its "
                "history"
            )
        numbers = tuple(n for n, each in enumerate(gradients) if each is not None)
        given = [self._laid(gradients[n]) for n in numbers]
        holes = tuple(Hole(2 + n) for n in range(len(given)))
        layouts = tuple(self.layout(self._dry.outputs[n]) for n in numbers)
        args = (Hole(0), Hole(1), holes, numbers, layouts, self._numbers, keeps)
        self._engine.slots.tell_soon()  # gradients that nobody has any more are where new ones go
        made = self._engine.own(
            "own.module_backward", args, [self._module, self._ran, *given], self._parallel.unknown
        )
        self._ran = self._ran if keeps else None
        metas = [*map(self._input_gradient, self.inputs), *(_gradient(p.mesh_meta) for p in self.parameters)]
        return [self._engine.own("own.element", (Hole(0), n), [made], meta) for n, meta in enumerate(metas)]

    def _input_gradient(self, value: Tensor) -> Any:
        meta = value.mesh_meta
        layout = tuple(each if each.is_shard() else Partial() for each in meta.placements or ())
        if self._parallel.shares:  # ranks that share layers have the same gradient
            layout = (Replicate(), *layout[1:])
        return intern(meta.size, contiguous(meta.size), meta.dtype, meta.grid, layout)

    def _laid(self, gradient: Any) -> Tensor:
        found: Tensor = (
            gradient if isinstance(gradient, Tensor) else brought(gradient, self._grid, self._grid.replicated)
        )
        return found.detach()  # type: ignore[no-any-return]


class Run(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function that puts a forward on the ranks into the program's autograd history."""

    @staticmethod
    def forward(ctx: Any, call: Call, *_: Any) -> Any:
        """Run the forward of the call."""
        ctx.call = call
        ctx.set_materialize_grads(False)
        outputs = call.forward()
        ctx.mark_non_differentiable(*call.without_gradient(outputs))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Run the backward of the call."""
        if torch.is_grad_enabled():
            raise MeshUsageError(
                "create_graph=True through a module of parallelize: its backward runs on the ranks, "
                "and has no gradient of its own. monarch_nb.module_to_mesh(module, mesh) makes one that has"
            )
        return None, *ctx.call.backward(gradients, keeps_graph())


def _gradient(meta: Any) -> Any:
    return intern(meta.size, contiguous(meta.size), meta.dtype, meta.grid, meta.placements)
