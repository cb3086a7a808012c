"""The private names of torch that tensors of a mesh need, in one module: a new version of torch that has
moved one fails here, with that name.

DTensor's rules, wrapper subclasses and process groups without a default one have no public way.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from operator import attrgetter, methodcaller
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import is_parametrized

_c10d = dist.distributed_c10d

schema_of: Any = attrgetter("_schema")
local_of: Any = attrgetter("_local_tensor")
spec_of: Any = attrgetter("_spec")
own_buffers: Any = attrgetter("_buffers")
own_layers: Any = attrgetter("_modules")
own_parameters: Any = attrgetter("_parameters")
"""What a module has itself, by name, without its layers': a walk through these takes ten times as long."""
bare: Any = attrgetter("_op")
"""What an operation calls, without the Python function around it."""
dispatcher: Any = attrgetter("_op_dispatcher")(DTensor)
random_ops: Any = attrgetter("_random_ops")(dispatcher)
handled_apart: Any = attrgetter("_custom_op_handlers")(dispatcher)
"""Operations for which DTensor has code of its own."""
make_wrapper: Any = attrgetter("_make_wrapper_subclass")(torch.Tensor)
no_torch_function: Any = attrgetter("_C._disabled_torch_function_impl")(torch)
tensor_text: Any = attrgetter("_tensor_str._tensor_str")(torch)
decompositions: Any = attrgetter("_decomp.decomposition_table")(torch)
attention_on_cpu: Any = attrgetter("_scaled_dot_product_flash_attention_for_cpu.default")(torch.ops.aten)
attention_on_cpu_backward: Any = attrgetter("_scaled_dot_product_flash_attention_for_cpu_backward.default")(
    torch.ops.aten
)
pool_backward: Any = attrgetter("_adaptive_avg_pool2d_backward.default")(torch.ops.aten)
_count_uses: Any = attrgetter("_C._storage_Use_Count")(torch)
_Operation: Any = attrgetter("_ops.OpOverload")(torch)
item_op: Any = attrgetter("_local_scalar_dense.default")(torch.ops.aten)
register_group: Any = attrgetter("_register_process_group")(_c10d)
unregister_group: Any = attrgetter("_unregister_process_group")(_c10d)
resolve_group: Any = attrgetter("_resolve_process_group")(_c10d)
no_dispatch: Any = attrgetter("_C._DisableTorchDispatch")(torch)
is_meta_included: Any = attrgetter("_C._meta_in_tls_dispatch_include")(torch)
include_meta: Any = attrgetter("_C._set_meta_in_tls_dispatch_include")(torch)
_num_dispatch_modes: Any = attrgetter("_C._len_torch_dispatch_stack")(torch)
_num_function_modes: Any = attrgetter("_C._len_torch_function_stack")(torch)
_transforms_active: Any = attrgetter("_C._functorch.peek_interpreter_stack")(torch)
is_autocast: Any = attrgetter("_C._is_any_autocast_enabled")(torch)
dispatch_mode: Any = attrgetter("_C._get_dispatch_mode")(torch)
FAKE_MODE: Any = attrgetter("_C._TorchDispatchModeKey.FAKE")(torch)
graph_task: Any = attrgetter("_C._current_graph_task_id")(torch)
keeps_graph: Any = attrgetter("_C._autograd._get_current_graph_task_keep_graph")(torch)
ranks_of_groups: Any = attrgetter("_world.pg_group_ranks")(_c10d)
_set_versions: Any = attrgetter("_C._autograd._unsafe_set_version_counter")(torch)
_forget_native: Any = attrgetter("_C._clear_DTensor_sharding_propagator_cache")(torch)
_transforms: Any = attrgetter("_redistribute._gen_transform_infos")(torch.distributed.tensor)
_propagator: Any = attrgetter("sharding_propagator")(dispatcher)
torch_concatenate: Any = attrgetter("_concatenate")(DeviceMesh)
AsyncCollectiveTensor: Any = attrgetter("_functional_collectives.AsyncCollectiveTensor")(torch.distributed)
_custom_ops: Any = attrgetter("_library.custom_ops.OPDEFS")(torch)


MAX_SPECS = 1024
_specs: dict[Any, Any] = {}
"""Layouts that `laid_out` has made. Each keeps its mesh alive, whose id is in its key."""
_hooks_of: Any = attrgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_inject_class: Any = attrgetter("_inject_new_class")(parametrize)
_inject_parameter: Any = attrgetter("_inject_property")(parametrize)
_has_kernel: Any = attrgetter("_C._dispatch_has_kernel_for_dispatch_key")(torch)
_by_key: Any = attrgetter("_op_dk")
_COMPOSITE: Any = torch._C.DispatchKey.CompositeImplicitAutograd
_OfOwnRows: Any = attrgetter("placement_types._MaskPartial")(torch.distributed.tensor)


def taken_apart(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what an operation gives that only calls others; NotImplemented for another one.

    Torch takes these apart itself, but not with tensors that were made in torch.inference_mode.
    """
    if not _has_kernel(op.name(), _COMPOSITE):
        return NotImplemented
    return _by_key(op)(_COMPOSITE, *args, **kwargs)


def version_of(tensor: Any) -> int:
    """Return how often a tensor was changed in place. Those that are made in torch.inference_mode don't count
    it: -1.
    """
    return -1 if tensor.is_inference() else tensor._version


def wrapper_maker(
    cls: type, size: Sequence[int], stride: Sequence[int] | None, offset: int, dtype: torch.dtype, device: str
) -> Callable[[], Any]:
    """Return a factory of tensors without data that have this form. Torch takes half as long again to read
    the same arguments by name, and a third to read an offset.

    Args:
        stride: None: those of a contiguous tensor, which takes less time than to read them.
    """
    return functools.partial(
        make_wrapper, cls, size, stride, offset or None, None, dtype, torch.strided, torch.device(device)
    )


def has_modes() -> bool:
    """Return whether a mode or a transform of torch's is active: it may see or change operations before the
    tensors' own code does.
    """
    return _num_dispatch_modes() or _num_function_modes() or _transforms_active() is not None


def wrapped(local: torch.Tensor, spec: Any) -> DTensor:
    """Return a rank's part as one tensor over the mesh, with a layout that's known.

    `DTensor.__init__` does nothing, in 5 us: it's wrapped for torch.compile.
    """
    return DTensor.__new__(DTensor, local, spec, requires_grad=False)


def laid_out(
    local: torch.Tensor, mesh: Any, placements: Sequence[Any], size: Sequence[int], stride: Sequence[int]
) -> DTensor:
    """Return a rank's part as one tensor over the mesh: `DTensor.from_local`, in a fraction of the time."""
    key = id(mesh), tuple(placements), tuple(size), tuple(stride), local.dtype  # meshes may be equal
    spec = _specs.get(key)
    if spec is None:
        if len(_specs) >= MAX_SPECS:
            _specs.clear()
        meta = TensorMeta(torch.Size(size), tuple(stride), local.dtype)
        spec = _specs[key] = DTensorSpec(mesh, tuple(placements), meta)
    return wrapped(local, spec)


def is_operation(value: Any) -> bool:
    """Say whether something is an operation of torch's, and nothing around it."""
    return isinstance(value, _Operation)


def module_of_op(func: Any) -> str:
    """Return the Python module that registers a custom operation; empty for torch's own and for those of
    which nobody knows.
    """
    found = _custom_ops.get(schema_of(func).name)
    return "" if found is None else str(attrgetter("_init_fn.__module__")(found))


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Say how often a tensor was changed in place."""
    _set_versions((tensor,), (version,))


def forget_layouts() -> None:
    """Empty DTensor's own tables of layouts, which have no bound: one entry for each operation and shape."""
    _specs.clear()
    _forget_native()
    _transforms.cache_clear()
    _propagator.propagate_op_sharding.cache_clear()


def replace_concatenate(function: Any) -> None:
    """Have torch concatenate device meshes by a function. fully_shard does so for parameters that tensor
    parallelism has split; it has no other way to give it the mesh.
    """
    setattr(DeviceMesh, "_concatenate", staticmethod(function))  # noqa: B010


def replace_reductions(around: Callable[[Any], Any], is_meant: Callable[[Any], bool]) -> None:
    """Have DTensors reduce summands over ranks otherwise.

    Args:
        around: gets torch's function, and returns the one that is called in its place.
        is_meant: says for which layouts.
    """
    whole, shards = attrgetter("_reduce_value", "_reduce_shard_value")(Partial)
    replaced = around(whole)

    def to_whole(layout: Any, part: torch.Tensor, mesh: Any, axis: int) -> Any:
        return (replaced if is_meant(layout) else whole)(layout, part, mesh, axis)

    def to_shards(layout: Any, part: torch.Tensor, mesh: Any, axis: int, shard: Any) -> Any:
        if not is_meant(layout):
            return shards(layout, part, mesh, axis, shard)
        parts = replaced(layout, part, mesh, axis).chunk(mesh.size(axis), shard.dim)
        place = mesh.get_local_rank(axis)
        return parts[place].contiguous() if place < len(parts) else parts[0].narrow(shard.dim, 0, 0)

    setattr(Partial, "_reduce_value", to_whole)  # noqa: B010
    setattr(Partial, "_reduce_shard_value", to_shards)  # noqa: B010


def replace_loaded_state(around: Callable[[Any], Any]) -> None:
    """Have `load_state_dict` of torch's optimisers bring a parameter's state to where that is otherwise.

    Args:
        around: gets torch's function of a parameter and a value, and returns what is called in its place.
    """
    name = "_process_value_according_to_param_policy"
    setattr(torch.optim.Optimizer, name, staticmethod(around(getattr(torch.optim.Optimizer, name))))


def default_to_lists(is_meant: Any) -> None:
    """Have torch's optimisers treat parameters as lists, unless the user has said what to do, also where
    `is_meant` says so of them. They decide by an exact type and device, and have no other way.
    """
    name = "_default_to_fused_or_foreach"
    by_torch = attrgetter(name)(sys.modules["torch.optim.optimizer"])

    def default(params: list[Any], differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
        if not use_fused and not differentiable and is_meant(params):
            return False, True
        found: tuple[bool, bool] = by_torch(params, differentiable, use_fused)
        return found

    for path, module in list(sys.modules.items()):  # torch.optim has no other names of its modules
        if path.startswith("torch.optim.") and hasattr(module, name):
            setattr(module, name, default)


def replace_losses(around: Callable[[Any], Any]) -> None:
    """Have all losses with targets of this process be computed otherwise: `functional.cross_entropy` and
    `nll_loss` look torch's functions up here.

    Args:
        around: gets torch's function, and returns the one that is called in its place.
    """
    module = attrgetter("_C._nn")(torch)
    for name in ("cross_entropy_loss", "nll_loss_nd"):
        setattr(module, name, around(getattr(module, name)))


def num_hooks(layer: torch.nn.Module) -> int:
    """Return how many hooks a layer has that are called with its forward, or with the backward of that."""
    return sum(map(len, _hooks_of(layer)))


def gradient_hooks(tensor: torch.Tensor) -> list[Any]:
    """Return the hooks of a tensor that are called with its gradient."""
    found: Any = tensor
    hooks, after = found._backward_hooks, found._post_accumulate_grad_hooks
    return [*(hooks or {}).values(), *(after or {}).values()] if hooks or after else []


@contextmanager
def parametrized_sent(module: torch.nn.Module) -> Iterator[None]:
    """Let layers whose parameters are computed from others (`weight_norm`, `spectral_norm`) be pickled, in a
    block. Torch makes a class for each, and refuses, for a file would depend on how it does so.
    """
    classes = {type(each) for each in module.modules() if is_parametrized(each)}
    for each in classes:
        each.__reduce_ex__ = _reduce_parametrized  # type: ignore[assignment]
    try:
        yield
    finally:
        for each in classes:
            del each.__reduce_ex__


def _reduce_parametrized(layer: torch.nn.Module, _protocol: Any) -> tuple[Any, ...]:
    kind = type(layer).__mro__[1]
    names = tuple(attrgetter("parametrizations")(layer))
    return _new_parametrized, (kind, names), layer.__dict__


def _new_parametrized(kind: type[torch.nn.Module], names: Sequence[str]) -> torch.nn.Module:
    """Return a layer that its state is put into next."""
    made: torch.nn.Module = object.__new__(kind)
    vars(made).update(_parameters={}, _buffers={}, _modules={})
    _inject_class(made)
    for name in names:
        _inject_parameter(made, name)
    return made


def is_replicated(value: DTensor) -> bool:
    """Say whether each rank has the whole of a tensor."""
    return all(each.is_replicate() for each in value.placements)


def num_masked(spec: Any) -> int:
    """Return over how many axes of the mesh a result is the sum of what ranks find in their rows of a table.
    Torch keeps which rows these are in one place, so more than one axis fails.
    """
    return 0 if spec is None else sum(isinstance(each, _OfOwnRows) for each in spec.placements)


def without_masks(spec: Any) -> Any:
    """Return the layout of such a sum when it's done."""
    if not num_masked(spec):
        return spec
    placements = [Replicate() if isinstance(each, _OfOwnRows) else each for each in spec.placements]
    return DTensorSpec(spec.mesh, tuple(placements), spec.tensor_meta)


def num_references(tensor: torch.Tensor) -> int:
    """Return how many tensors have a tensor's memory, and as many more as this needs to count them."""
    memory = attrgetter("_cdata")(tensor.untyped_storage())
    return int(_count_uses(memory))


def rebuild_buckets(reducer: Any) -> None:
    """Have DDP's reducer lay out its buckets by the first backward, if it hasn't. It notes gradients until
    then, and a second backward's would be too many.
    """
    methodcaller("_rebuild_buckets")(reducer)


def set_timeout(backend: Any, timeout: timedelta) -> None:
    """Set the time-out of a gloo backend's operations to come."""
    methodcaller("_set_default_timeout", timeout)(backend)


def set_up_group(
    group: Any, name: str, description: str, device: torch.device, kind: Any, backend: Any
) -> None:
    """Give a process group its backend and its name."""
    for method, *arguments in (
        ("_set_default_backend", kind),
        ("_register_backend", device, kind, backend),
        ("_set_group_name", name),
        ("_set_group_desc", description),
    ):  # fmt: skip
        methodcaller(method, *arguments)(group)


def restride(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> None:
    """Give a wrapper, which has no memory of its own, another shape in place."""
    before = is_meta_included()
    with no_dispatch():
        include_meta(True)  # otherwise torch checks the tensor's memory
        try:
            tensor.as_strided_(size, stride, offset)
        finally:
            include_meta(before)
