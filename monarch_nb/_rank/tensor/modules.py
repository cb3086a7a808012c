"""Modules on a rank: constructed once by a strategy's specification, then each forward is one command, each
backward another.

What parallelises them is torch's own, unmodified: DistributedDataParallel, fully_shard, checkpoint, compile.
"""

from __future__ import annotations

import functools
import linecache
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from monarch_nb._frames.owner import Owner, owner_of_file
from monarch_nb._rank.tensor.buckets import Buckets
from monarch_nb._rank.tensor.inside import tensors_of
from monarch_nb._rank.tensor.meshes import OwnMesh, device_type
from monarch_nb._rank.tensor.own_losses import OverAllRows, means_by
from monarch_nb._rank.tensor.private import local_of, rebuild_buckets, spec_of, version_of, wrapped
from monarch_nb._rank.tensor.protocol import LayerError, ParallelSpec
from monarch_nb._rank.tensor.tensor_parallel import LocalParameters, apply_plan, dims_of, seeded
from monarch_nb._rank.tensor.whole import redistributed
from monarch_nb._wire.codec import from_bytes

warnings.filterwarnings("ignore", message="FSDP2-wrapped module.*returned a view")
# results aren't changed in place: the program has tensors of its own
Grids = Mapping[int, OwnMesh]


class Ran:
    """The record of one forward: its outputs with their autograd history.

    Attributes:
        number: number of this forward, counted for each module.
        outputs: tensors of the result, flat.
        inputs: tensors that it was called with and whose gradients are wanted, each with its layout.
    """

    __slots__ = ("inputs", "number", "outputs")

    def __init__(self, number: int, outputs: list[Any], inputs: list[tuple[Any, Any]]) -> None:
        self.number, self.outputs, self.inputs = number, outputs, inputs


class OnRank:
    """A module of the mesh on this rank.

    Args:
        spec: how to make it. The spec's module is consumed.
        mesh: over which batches and, with fully_shard, parameters are split; with tensor parallelism, layers
            are split over its first axis.
        values: of its parameters, in the order of `named_parameters`, laid out as they shall be.
    """

    def __init__(self, spec: ParallelSpec, mesh: OwnMesh, values: Sequence[Any]) -> None:
        self._spec, self._mesh = spec, mesh
        self._data: OwnMesh = mesh if spec.tensor is None else mesh[mesh.mesh_dim_names[1]]
        """Over which batches are split."""
        self.module: Any = spec.module
        self._num_forwards = 0
        self._prepared = -1
        """The forward whose backward the reducer of DDP expects."""
        self._reached = ""
        self._reducer: Any = None
        self._buckets = Buckets()
        self._paths = {id(layer): path for path, layer in self.module.named_modules()}
        self._layers = list(self.module.modules())
        self._names = [name for name, _ in self.module.named_parameters()]
        self._wholes = [(each.shape, each.stride()) for each in self.module.parameters()]
        self._layouts = self._laid_out()
        self._specs: dict[int, tuple[tuple[int, ...], Any]] = {}
        """Of each parameter, and its gradient: strides of this rank's part, and the layout over the mesh."""
        self._of_outputs: dict[int, tuple[Any, Any]] = {}
        """Of each part of the last result: what it was like, and the layout over the mesh."""
        self._local: LocalParameters | None = None
        self._leaves: list[nn.Parameter] = []
        self._wrap()
        self._fill(values)
        self._watch()
        self._call: Callable[..., Any] = self._ddp() if spec.strategy == "ddp" else self.module
        if spec.compiles:
            self.module.compile()
        if spec.strategy == "fsdp":  # otherwise padded shards would move with the first forward
            self.module.unshard()
            self.module.reshard()
        self.parameters = self._parameters()
        self._versions: list[int] = []
        """Of the parameters, when they were gathered last."""

    # --- making it

    def _laid_out(self) -> list[list[Any]]:
        """Return the layout of each parameter."""
        spec, axes = self._spec, self._data.ndim
        splits = spec.strategy == "fsdp"
        data = []
        for name, (size, _) in zip(self._names, self._wholes, strict=True):
            last = Shard(0) if splits and size and name not in spec.apart else Replicate()
            data.append([Replicate()] * (axes - 1) + [last])
        if spec.tensor is None:
            return data
        dims = dims_of(self.module, {each.path: each.style for each in spec.tensor.layers})
        return [
            [Shard(dims[name]) if name in dims else Replicate(), *rest]
            for name, rest in zip(self._names, data, strict=True)
        ]

    def _wrap(self) -> None:
        spec = self._spec
        if spec.tensor is not None:
            apply_plan(self.module, spec.tensor, self._mesh[self._mesh.mesh_dim_names[0]])
        for number, path in enumerate(spec.whole):
            layer = self.module.get_submodule(path)
            layer.forward = _Whole(layer.forward, self._data, self._seed, number)
        for path in spec.checkpointed:
            layer = self.module.get_submodule(path)
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
        self.module.forward = _without_parameters(self.module.forward)
        if spec.strategy == "fsdp":
            self._shard()

    def _seed(self) -> int:
        return self._spec.seed + self._num_forwards * 1_000_003

    def _shard(self) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        apart = {self.module.get_parameter(name) for name in self._spec.apart}
        # None: the remaining parameters, whose backward comes first, aren't gathered twice
        named: dict[str, Any] = {
            "mesh": self._data,
            "reshard_after_forward": None if self._spec.reshards else False,
        }
        if apart:
            named["ignored_params"] = apart
        if self._spec.precision:
            low = getattr(torch, self._spec.precision)
            named["mp_policy"] = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
        for path in [*self._spec.groups, ""]:
            fully_shard(self.module.get_submodule(path), **named)

    def _fill(self, values: Sequence[Any]) -> None:
        """Give parameters their memory and their numbers; buffers have theirs."""
        _materialize(self.module)
        with torch.no_grad():
            for (_, each), value in zip(self.module.named_parameters(), values, strict=True):
                _local(each).copy_(_local(value))

    def _ddp(self) -> Callable[..., Any]:
        is_alone = self._spec.tensor is not None and self._data.size() == 1
        if is_alone or not any(each.requires_grad for each in self.module.parameters()):
            return self.module  # type: ignore[no-any-return]
        if self._spec.tensor is not None:
            self._local = LocalParameters(self.module)
        self._leaves = list(self.module.parameters())
        self._buckets = Buckets(keep=not self._spec.has_unused)
        from torch.nn.parallel import DistributedDataParallel

        with warnings.catch_warnings():  # of the name of an option
            warnings.simplefilter("ignore", FutureWarning)
            found = DistributedDataParallel(
            self.module, process_group=self._data.get_group(0), init_sync=False, broadcast_buffers=False,
            find_unused_parameters=self._spec.has_unused, gradient_as_bucket_view=self._buckets.keep,
        )  # fmt: skip
        buckets = self._buckets  # the reducer keeps the hook: what that knows of this would never be freed
        # without annotations, which torch compares with types, not with their text
        found.register_comm_hook(self._data.get_group(0), lambda group, bucket: buckets.sum(group, bucket))
        self._reducer = found.reducer
        made: Callable[..., Any] = found
        return made

    def _watch(self) -> None:
        """Note which of the user's layers was reached last in backward: what the autograd engine raises
        doesn't say it. torch's own layers are left alone, since their backward fails for want of memory only,
        and a hook for each costs a hundredth of a small step.
        """
        for path, layer in self.module.named_modules():
            if not list(layer.children()) and type(layer).__module__[:9] != "torch.nn.":
                layer.register_forward_hook(functools.partial(self._after, _name(path, layer)))

    def _after(self, name: str, _layer: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(functools.partial(self._reach, name))

    def _reach(self, name: str, _gradient: Any) -> None:
        self._reached = name

    def _parameters(self) -> list[Any]:
        """Return parameters as DTensors that share their memory."""
        return [self._as_parameter(each.detach(), n) for n, each in enumerate(self._current())]

    def _current(self) -> list[nn.Parameter]:
        """Return the module's parameters as they are now: fully_shard replaces them."""
        return self._leaves or list(self.module.parameters())

    def _as_parameter(self, value: torch.Tensor, number: int) -> DTensor:
        """Return a parameter, or its gradient, as one tensor over the mesh."""
        if isinstance(value, DTensor) and self._spec.tensor is None:
            return value
        local = _local(value)
        known = self._specs.get(number)
        if known is not None and local.stride() == known[0] and local.dtype == known[1].tensor_meta.dtype:
            return wrapped(local, known[1])
        made = self._new_parameter(local, number)
        self._specs[number] = local.stride(), spec_of(made)
        return made

    def _new_parameter(self, local: torch.Tensor, number: int) -> DTensor:
        if self._spec.tensor is None:
            return self._as_global(local)
        size, stride = self._wholes[number]
        return DTensor.from_local(
            local, self._mesh, self._layouts[number], run_check=False, shape=size, stride=stride
        )

    def _as_global(self, value: torch.Tensor) -> DTensor:
        if isinstance(value, DTensor):
            return value
        return DTensor.from_local(value, self._mesh, [Replicate()] * self._mesh.ndim, run_check=False)

    # --- using it

    def with_numbers(self, numbers: Mapping[int, Mapping[str, Any]]) -> OnRank:
        """Change attributes of layers, by number; return itself."""
        for number, values in numbers.items():
            for name, value in values.items():
                setattr(self._layers[number], name, value)
        return self

    def buffer(self, name: str) -> Any:
        """Return a buffer, as it is now; a change of it in place changes the module's."""
        return self._as_global(self.module.get_buffer(name))

    def forward(
        self, leaves: Sequence[Any], structure: Any, flags: tuple[bool, ...], grads: tuple[int, ...] | None
    ) -> Ran:
        """Call the module.

        Args:
            leaves, structure: its arguments; of tensors this rank's part.
            flags: which layers are in training.
            grads: which leaves want gradients; None: nothing does, and there's no history.
        """
        for layer, is_training in zip(self._layers, flags, strict=True):
            if layer.training is not is_training:
                layer.training = is_training
        self._num_forwards += 1
        self._see_changes()
        plain = [_local(each) if isinstance(each, torch.Tensor) else each for each in leaves]
        wanted = [(plain[n].requires_grad_(True), leaves[n].placements) for n in grads or ()]
        args, kwargs = pytree.tree_unflatten(plain, _structure(structure))
        with torch.set_grad_enabled(grads is not None), self._autocast(), self._losses():
            try:
                result = self._called(args, kwargs)
            except Exception as error:
                raise self._located(error, "forward") from error
        outputs = tensors_of(result)
        if grads is not None:
            self._prepared = self._num_forwards
        return Ran(self._num_forwards, outputs, wanted)

    def _see_changes(self) -> None:
        """Have parameters be gathered again if they were changed: fully_shard keeps what a forward has
        gathered until a backward, and there may be none.
        """
        if self._spec.strategy != "fsdp":
            return
        versions = [version_of(local_of(each)) for each in self.parameters]
        if versions != self._versions:
            self._versions = versions
            for path in [*self._spec.groups, ""]:
                self.module.get_submodule(path).reshard()

    def _called(self, args: Any, kwargs: Any) -> Any:
        if self._local is not None:
            self._local.enter()
        if self._spec.tensor is None or not self._spec.tensor.draws:
            return self._call(*args, **kwargs)
        return seeded(self._call, self._seed() + self._data.get_coordinate()[-1], args, kwargs)

    def _autocast(self) -> Any:
        low = self._spec.precision if self._spec.strategy == "ddp" else ""
        return torch.autocast(device_type(), getattr(torch, low or "bfloat16"), enabled=bool(low))

    def _losses(self) -> AbstractContextManager[None]:
        """Return the context for what calls the module's layers."""
        if not self._spec.counts_rows:
            return nullcontext()
        return means_by(OverAllRows([self._data.get_group(axis) for axis in range(self._data.ndim)]))

    def output(self, ran: Ran, number: int, placements: Sequence[Any]) -> DTensor:
        """Return a part of a result as one tensor over the mesh."""
        local = ran.outputs[number].detach()
        kind = (local.shape, local.stride(), local.dtype, tuple(placements))
        known, spec = self._of_outputs.get(number, (None, None))
        if known == kind:
            return wrapped(local, spec)
        made = DTensor.from_local(local, self._mesh, placements, run_check=False)
        self._of_outputs[number] = kind, spec_of(made)
        return made

    def backward(
        self,
        ran: Ran,
        gradients: Sequence[Any],
        numbers: Sequence[int],
        layouts: Sequence[Any],
        wanted: Sequence[int],
        keeps: bool,
    ) -> list[Any]:
        """Go back through a forward; return gradients of its inputs, then of parameters.

        Args:
            gradients: of the outputs with these `numbers`, whose layouts are `layouts`.
            wanted: which parameters take part.
            keeps: the history is kept, to go back once more.
        """
        if self._reducer is not None and ran.number != self._prepared:
            rebuild_buckets(self._reducer)
            self._reducer.prepare_for_backward(ran.outputs if self._spec.has_unused else [])
        self._prepared = -1
        self._reached = ""
        scale = float(self._data.size()) if self._divides() else 1.0
        local = [self._share(g, p, scale) for g, p in zip(gradients, layouts, strict=True)]
        parameters: list[nn.Parameter] = []
        self._buckets.begin_backward()
        try:
            with self._losses():  # layers may be computed once more
                torch.autograd.backward([ran.outputs[n] for n in numbers], local, retain_graph=keeps)
            self._buckets.end_backward()
            # fully_shard replaces parameters: only now they are the ones that have gradients
            parameters = self._current()
            found = [self._gradient(parameters[n], n) for n in wanted]
        except Exception as error:
            raise self._located(error, "backward") from error
        finally:
            for each in parameters or self._current():
                each.grad = None
            self._buckets.put_back()
        return [*(self._of_input(*each) for each in ran.inputs), *found]

    def _divides(self) -> bool:
        """Say whether what sums gradients divides them by the number of ranks."""
        return self._spec.strategy == "fsdp"

    def _share(self, gradient: DTensor, layout: Sequence[Any], scale: float) -> torch.Tensor:
        """Return this rank's share of an output's gradient: shares of all ranks make the whole."""
        target = [each if each.is_shard() else Replicate() for each in layout]
        local = local_of(redistributed(gradient, target))
        data = layout[-self._data.ndim :]  # ranks that share layers go back through the same forward
        for size, each in zip(self._data.shape, data, strict=True):
            if each.is_replicate() or (isinstance(each, Partial) and each.reduce_op == "avg"):
                scale /= size
        return local if scale == 1.0 else local * scale

    def _gradient(self, parameter: nn.Parameter, number: int) -> DTensor:
        """Return a parameter's gradient as one tensor over the mesh."""
        gradient, known = parameter.grad, self._specs.get(number)
        if type(gradient) is torch.Tensor and known is not None and self._spec.strategy == "ddp":
            stride, spec = known
            if gradient.stride() == stride and gradient.dtype == spec.tensor_meta.dtype:
                return wrapped(self._buckets.given_away(gradient), spec)
        return self._as_parameter(self._taken(parameter, number), number)

    def _taken(self, parameter: nn.Parameter, number: int) -> torch.Tensor:
        if parameter.grad is None:
            if _local(parameter).numel():
                raise RuntimeError(
                    f"{self._names[number]} has got no gradient, though it contributes to the result"
                )
            return torch.zeros_like(parameter)
        gradient = parameter.grad
        if self._spec.strategy == "fsdp" and self._names[number] in self._spec.apart:
            gradient = gradient / self._data.size()
            for axis in range(self._data.ndim):
                dist.all_reduce(gradient, group=self._data.get_group(axis))
        if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
            gradient = gradient.redistribute(placements=parameter.placements)  # each rank's share of it
        return self._buckets.given_away(gradient)

    def _of_input(self, value: torch.Tensor, placements: Sequence[Any]) -> DTensor:
        gradient = torch.zeros_like(value) if value.grad is None else value.grad
        if self._divides():
            gradient = gradient / self._data.size()
        value.grad = None
        layout = [each if each.is_shard() else Partial() for each in placements]
        if self._spec.tensor is not None:
            layout[0] = Replicate()
        return DTensor.from_local(gradient, self._mesh, layout, run_check=False)

    # --- errors

    def _located(self, error: Exception, phase: str) -> Exception:
        """Return an error that names the layer and the line of the user's."""
        where, line = self._layer_of(error.__traceback__)
        if phase == "backward":
            where = self._reached or where
        message = str(error).partition("\nException raised from")[0].strip()
        return LayerError(type(error).__name__, f"{message}\n  in {phase} of {where or 'the module'}{line}")

    def _layer_of(self, trace: TracebackType | None) -> tuple[str, str]:
        where = line = ""
        for frame, number in _frames(trace):
            layer = frame.f_locals.get("self")
            if isinstance(layer, nn.Module) and id(layer) in self._paths:
                where = _name(self._paths[id(layer)], layer)
            if owner_of_file(frame.f_code.co_filename) is Owner.USER:
                text = linecache.getline(frame.f_code.co_filename, number).strip()
                line = f", {frame.f_code.co_filename.rpartition('/')[2]} line {number}:  {text}"
        return where, line


def _materialize(module: nn.Module) -> None:
    """Give parameters on `meta` memory; what was one parameter stays one."""
    made: dict[int, nn.Parameter] = {}
    for layer in module.modules():
        for name, each in list(layer.named_parameters(recurse=False, remove_duplicate=False)):
            if id(each) not in made:
                made[id(each)] = nn.Parameter(
                    torch.empty_like(each, device=device_type()), each.requires_grad
                )
            setattr(layer, name, made[id(each)])
    for layer in module.modules():
        for name, each in list(layer.named_buffers(recurse=False)):
            setattr(layer, name, each.to(device_type()))


class _Whole:
    """A wrapper of a layer that mixes rows of the batch: every rank runs it on the whole batch and keeps its
    own rows of the result.

    Each rank's gradient is that of its rows, so sums over ranks are those of one process.
    """

    def __init__(
        self, forward: Callable[..., Any], mesh: OwnMesh, seed: Callable[[], int], number: int
    ) -> None:
        self._forward, self._mesh, self._seed, self._number = forward, mesh, seed, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        rows = next((x.shape[0] for x in pytree.tree_leaves((args, kwargs)) if _has_rows(x)), 0)
        gather = functools.partial(self._gathered, rows)
        args, kwargs = pytree.tree_map(gather, (args, kwargs))
        with torch.random.fork_rng():
            torch.manual_seed(self._seed() + self._number)
            result = self._forward(*args, **kwargs)
        return pytree.tree_map(functools.partial(self._own, rows), result)

    def _gathered(self, rows: int, value: Any) -> Any:
        if not _has_rows(value) or value.shape[0] != rows:
            return value
        whole = DTensor.from_local(value, self._mesh, [Shard(0)] * self._mesh.ndim, run_check=False)
        return whole.full_tensor(grad_placements=[Partial()] * self._mesh.ndim)

    def _own(self, rows: int, value: Any) -> Any:
        if not _has_rows(value) or value.shape[0] != rows * self._mesh.size():
            return value
        place = 0
        for size, at in zip(self._mesh.shape, self._mesh.get_coordinate(), strict=True):
            place = place * size + at
        return value.narrow(0, place * rows, rows)


def _without_parameters(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward whose results are no parameters, which have gradients of their own, and which
    fully_shard may free: copies of these.
    """

    @functools.wraps(forward)
    def do(*args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map(_copy_of_parameter, forward(*args, **kwargs))

    return do


def _copy_of_parameter(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    is_parameter = isinstance(value, nn.Parameter) or (
        value._is_view() and isinstance(value._base, nn.Parameter)
    )
    return value.clone() if is_parameter else value


@functools.cache
def _structure(text: str) -> Any:
    return pytree.treespec_loads(text)


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _local(value: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = local_of(value) if isinstance(value, DTensor) else value
    return found.detach()


def _name(path: str, layer: nn.Module) -> str:
    kind = type(layer).__name__.removeprefix("FSDP")
    return f"{path or 'the module'} ({kind})"


def _frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def operations(grids: Grids) -> dict[str, Callable[..., Any]]:
    """Return the executor's operations on modules, by name.

    Args:
        grids: device meshes by number.
    """
    return {
        "own.module": lambda spec, grid, values: OnRank(from_bytes(spec), grids[grid], values),
        "own.module_with": lambda module, sent: module.with_numbers(from_bytes(bytes(sent.cpu().numpy()))),
        "own.module_parameter": lambda module, number: module.parameters[number],
        "own.module_buffer": lambda module, name: module.buffer(name),
        "own.module_forward": lambda module, *rest: module.forward(*rest),
        "own.module_output": lambda module, *rest: module.output(*rest),
        "own.module_backward": lambda module, *rest: module.backward(*rest),
    }
