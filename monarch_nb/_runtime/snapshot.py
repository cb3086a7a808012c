"""A state dict as tensors by path, and a skeleton of the rest, which can be copied, saved and restored.

torch.distributed.checkpoint makes strings of a dictionary's keys, and optimizers count their parameters by
ints; so the structure is kept apart from the tensors, and comes back as it was.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

SKELETON = "<skeleton>"
"""Key of the part that isn't tensors."""


class TensorAt(NamedTuple):
    """A placeholder for a tensor in a skeleton."""

    path: str


class Snapshot(NamedTuple):
    """A copy of a state dict in host memory.

    Attributes:
        version: number of calls that had been handled.
        tensors: by path, as in `optimizer.state.0.exp_avg`.
    """

    version: int
    skeleton: Any
    tensors: dict[str, torch.Tensor]


def take_snapshot(state: Any, version: int, buffers: dict[str, torch.Tensor]) -> Snapshot:
    """Copy a state dict; tensors of equal shape and type in `buffers` are overwritten, which is fast, and new
    ones are added.
    """
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _split(state, "", tensors)
    copied = {path: _copy_into(buffers.get(path), tensor) for path, tensor in tensors.items()}
    buffers.clear()
    buffers.update(copied)
    if any(t.is_cuda for t in tensors.values()):
        import torch

        torch.cuda.synchronize()
    return Snapshot(version, skeleton, copied)


def rebuild(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state dict that a snapshot was taken of."""
    kind = type(skeleton)
    if kind is TensorAt:
        return tensors[skeleton.path]
    if isinstance(skeleton, dict):
        return {key: rebuild(value, tensors) for key, value in skeleton.items()}
    if kind is list or kind is tuple:
        return kind(rebuild(value, tensors) for value in skeleton)
    return copy.deepcopy(skeleton)


def _split(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach()
        return TensorAt(path)
    if isinstance(value, Mapping):
        return {key: _split(each, _join(path, key), tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_split(each, _join(path, i), tensors) for i, each in enumerate(value))
    return copy.deepcopy(value)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _copy_into(buffer: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        local = _copy_into(buffer.to_local() if isinstance(buffer, DTensor) else None, tensor.to_local())
        return DTensor.from_local(
            local,
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
    if (
        buffer is None
        or buffer.shape != tensor.shape
        or buffer.dtype != tensor.dtype
        or isinstance(buffer, DTensor)
    ):
        buffer = tensor.new_empty(tensor.shape, device="cpu", pin_memory=tensor.is_cuda)
    buffer.copy_(tensor, non_blocking=tensor.is_cuda)
    return buffer


# --- on disk

Exchange = Callable[[str, Any], list[Any]]
"""Gives a value for a phase to all members, and returns theirs in the order of their slots."""


def save(snapshot: Snapshot, prefix: str, path: str, slot: int, exchange: Exchange) -> None:
    """Write a snapshot, together with the other members: each writes its part, the first one the index.

    The plans go through `exchange` instead of a process group, which might hang when somebody dies.

    Args:
        prefix: put before all paths; members whose states are one take the same.
        path: directory, the same for all; it counts once it is renamed.
    """
    from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter

    flat: dict[str, Any] = {f"{prefix}.{p}": tensor for p, tensor in snapshot.tensors.items()}
    flat[f"{prefix}.{SKELETON}"] = (snapshot.version, snapshot.skeleton)
    planner, writer = DefaultSavePlanner(), FileSystemWriter(path)
    planner.set_up_planner(flat, writer.storage_meta(), slot == 0)
    writer.set_up_storage_writer(slot == 0)
    plans = exchange("plan", writer.prepare_local_plan(planner.create_local_plan()))
    metadata, final = None, None
    if slot == 0:
        all_plans, metadata = planner.create_global_plan(plans)
        final = writer.prepare_global_plan(all_plans)
    mine = planner.finish_plan(exchange("final", final)[0][slot])
    written = writer.write_data(mine, planner).wait()
    results = exchange("written", written)
    if slot == 0:
        assert metadata is not None
        writer.finish(metadata, results)
        _make_durable(path)


def _make_durable(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def load(path: str, prefix: str, template: Any) -> tuple[int, Any] | None:
    """Load version and state of a checkpoint with a prefix; None if there is none.

    Args:
        template: a state dict whose DTensors say which shards are wanted here; they're filled in place. All
            else comes whole.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.tensor import DTensor

    reader = dcp.FileSystemReader(path)
    metadata = reader.read_metadata()
    targets: dict[str, torch.Tensor] = {}
    _split(template, "", targets)
    flat: dict[str, Any] = {}
    for key, about in metadata.state_dict_metadata.items():
        if key.startswith(prefix + "."):
            target = targets.get(key[len(prefix) + 1 :])
            flat[key] = target if isinstance(target, DTensor) else _place_for(about, TensorStorageMetadata)
    if not flat:
        return None
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it loads without a process group, as it's told to
        dcp.load(flat, storage_reader=reader, planner=planner, no_dist=True)
    version, skeleton = flat.pop(f"{prefix}.{SKELETON}")
    return version, rebuild(skeleton, {key[len(prefix) + 1 :]: tensor for key, tensor in flat.items()})


def _place_for(about: Any, tensor_kind: Any) -> Any:
    import torch

    return torch.empty(about.size, dtype=about.properties.dtype) if isinstance(about, tensor_kind) else None
