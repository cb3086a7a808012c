"""Operations of `torch.distributed`: the operation that a thread is in, and the number that each process
group has entered.

Nothing is recorded on the way in. A thread that waits stands in a frame of `distributed_c10d`, whose
arguments say the rest; the group itself counts its operations; and torch's flight recorder (nccl's, and
gloo's since torch 2.9 or so) knows when each began, also those that DDP's backward starts in C.
"""

from __future__ import annotations

import ast
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

from msgspec.structs import replace

from monarch_nb._frames.owner import is_users, module_of
from monarch_nb._protocol.hang import GroupProgress, Operation, RecordedOperation
from monarch_nb._rank.blocking import called, look_up
from monarch_nb._wire.loaded import loaded

_DISTRIBUTED = "torch.distributed.distributed_c10d"
_WRAPPERS = frozenset({"wrapper", "func_wrapper"})
_GRAPH = "torch.autograd.graph"
UNKNOWN = "an operation"
FRESH_S = 0.1
_PEERS = {"recv": "src", "send": "dst"}
_COMPLETED = "completed"
"""nccl's recorder's state of a completed operation."""


def find(frames: Sequence[FrameType]) -> Operation | None:
    """Return the operation that a thread is in. Frames: innermost first."""
    for frame in frames:
        name = frame.f_code.co_name
        if is_distributed(frame) and not name.startswith("_"):
            return _described(name, frame.f_locals)
        if is_users(frame):
            return _waited_for(frame)
        if module_of(frame) == _GRAPH and name == "_engine_run_backward":
            return _backward(frames)
    return None


def is_distributed(frame: FrameType) -> bool:
    """Say whether a frame is in a function of `torch.distributed`, and not in a wrapper of it."""
    return module_of(frame) == _DISTRIBUTED and frame.f_code.co_name not in _WRAPPERS


class TensorFacts(NamedTuple):
    """The shape and dtype of an operation's (first) tensor."""

    shape: tuple[int, ...] | None = None
    dtype: str = ""


def tensor_in(arguments: Mapping[str, Any]) -> TensorFacts:
    """Return shape and dtype of an operation's (first) tensor; None and an empty text if it has none."""
    tensors: Any = arguments.get(
        "tensor", arguments.get("tensor_list", arguments.get("output", arguments.get("input")))
    )
    tensor: Any = tensors[0] if isinstance(tensors, list) and tensors else tensors
    with suppress(AttributeError, TypeError):
        return TensorFacts(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    return TensorFacts()


def _described(name: str, arguments: Mapping[str, Any]) -> Operation:
    if name in ("init_process_group", "new_group"):
        return Operation(name, num_ranks=arguments.get("world_size", -1))
    found = replace(_of_group(name, arguments.get("group")), **tensor_in(arguments)._asdict())
    peer = arguments.get(_PEERS.get(name, ""))
    return (
        replace(found, peer=peer, since=None) if isinstance(peer, int) else found
    )  # not an operation of a process group


def _of_group(name: str, group: Any) -> Operation:
    """Return an operation with its group's name, ranks and sequence number, and the start of the group's
    latest operation.
    """
    distributed = _distributed()
    if distributed is None:
        return Operation(name)
    group = group or distributed.group.WORLD
    ranks: tuple[int, ...] = ()
    sequence = 0
    with suppress(RuntimeError, AttributeError, ValueError):
        ranks = tuple(distributed.get_process_group_ranks(group))
        sequence = int(group._get_sequence_number_for_group())
    last = recorded().get(str(getattr(group, "group_name", "")))
    since = last.since if last is not None and last.sequence == sequence else None
    return Operation(name, _name(distributed, group), ranks, sequence, since=since)


def _name(distributed: Any, group: Any) -> str:
    if group is distributed.group.WORLD:
        return "default"
    described = str(getattr(group, "group_desc", "") or "")
    return described if described not in ("", "undefined") else str(getattr(group, "group_name", "?"))


def _waited_for(frame: FrameType) -> Operation | None:
    """Return the operation that `work.wait()` in the user's own code waits for."""
    expression = called(frame)
    function = expression.func if isinstance(expression, ast.Call) else None
    if not isinstance(function, ast.Attribute) or function.attr not in ("wait", "synchronize"):
        return None
    work = look_up(frame, function.value)
    if type(work).__name__ != "Work":
        return None
    return _youngest(UNKNOWN, "default")


def _backward(frames: Sequence[FrameType]) -> Operation | None:
    """Return the operation that a backward waits for if a DDP model is present, which reduces gradients."""
    if not any(_holds_ddp(frame) for frame in frames if is_users(frame)):
        return None
    return _youngest("backward of DDP", "default")


def _holds_ddp(frame: FrameType) -> bool:
    values = [*frame.f_locals.values(), *frame.f_globals.values()]
    return any(type(value).__name__ == "DistributedDataParallel" for value in values)


def _youngest(name: str, group: str) -> Operation:
    """Return the latest operation of a name, with shape and dtype of the group's latest one in the flight
    recorder.
    """
    found = replace(_of_group(name, None), group=group)
    distributed = _distributed()
    last = recorded().get(str(distributed.group.WORLD.group_name)) if distributed is not None else None
    if last is None:
        return found
    return replace(found, shape=last.shape, dtype=last.dtype, name=last.name if name == UNKNOWN else name)


# --- the groups themselves


def groups() -> dict[str, GroupProgress]:
    """Return the process groups by name, and the number of operations that were entered here."""
    distributed = _distributed()
    found: dict[str, GroupProgress] = {}
    if distributed is None:
        return found
    for group in list(distributed.distributed_c10d._world.pg_map):
        with suppress(RuntimeError, AttributeError, ValueError):
            found[_name(distributed, group)] = GroupProgress(
                tuple(distributed.get_process_group_ranks(group)), int(group._get_sequence_number_for_group())
            )
    return found


def own_rank() -> int | None:
    """Return this process' rank in the default group, if there is one."""
    distributed = _distributed()
    return None if distributed is None else int(distributed.get_rank())


def pending_on_device() -> tuple[RecordedOperation, ...]:
    """Return nccl's operations that have begun and not ended, oldest first: the threads that began them have
    continued.
    """
    return tuple(e for e in _entries("_dump_nccl_trace_json", only_active=True) if e.state != _COMPLETED)


def recorded() -> dict[str, RecordedOperation]:
    """Return the latest operation of each group in the flight recorder, by the group's inner name."""
    now = time.monotonic()
    if now - _known.when > FRESH_S:
        _known.found = {
            e.group: e for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json") for e in _entries(name)
        }
        _known.when = time.monotonic()
    return _known.found


class _Known:
    """The flight recorder's last answer, cached for a moment: writing out all its entries takes some 30 ms
    for 2000 operations, and one look asks several times.
    """

    when = -1e9
    found: dict[str, RecordedOperation] = {}


_known = _Known()


def _entries(source: str, *, only_active: bool = False) -> list[RecordedOperation]:
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), source, None)
    if dump is None:
        return []
    with suppress(RuntimeError, ValueError, TypeError, LookupError):
        return [
            _entry(e)
            for e in json.loads(dump(includeCollectives=True, onlyActive=only_active)).get("entries", ())
            if not e["is_p2p"]
        ]
    return []


def _entry(entry: Mapping[str, Any]) -> RecordedOperation:
    sizes, dtypes = entry["input_sizes"], entry["input_dtypes"]
    return RecordedOperation(
        entry["profiling_name"].rpartition(":")[2],
        entry["process_group"][0],
        entry["collective_seq_id"],
        entry["time_created_ns"] / 1e9,
        entry["state"],
        tuple(sizes[0]) if sizes else None,
        _dtype_name(dtypes[0].lower()) if dtypes else "",
    )


def _dtype_name(name: str) -> str:
    return {"float": "float32", "double": "float64", "long": "int64", "int": "int32"}.get(name, name)


def _distributed() -> Any:
    distributed = getattr(loaded("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
