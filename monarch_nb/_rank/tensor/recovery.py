"""Values that outlive the loss of a rank: those of which other ranks have the same part are given to the rank
that was started in its place.

They are sent as memory, not as tensors: views of one tensor share it there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.meshes import Meshes, device_type
from monarch_nb._rank.tensor.private import (
    AsyncCollectiveTensor,
    local_of,
    set_version,
    spec_of,
    version_of,
    wrapped,
)  # fmt: skip
from monarch_nb._rank.tensor.protocol import Copied, Definition, Gift, Offer


def versions_of(table: Sequence[Any]) -> dict[int, int]:
    """Return how often each value was changed in place, by its slot."""
    found = {}
    for slot, value in enumerate(table):
        if tensors := _tensors(value):
            found[slot] = sum(map(version_of, tensors))
    return found


class Stale:
    """The memory that commands would have changed that are left out: also by views which would have been made
    by then.
    """

    def __init__(self, table: Sequence[Any], returns_views: Callable[[Definition], bool]) -> None:
        self._memory = [_memory_of(value) for value in table]
        self._before = list(self._memory)
        self._returns_views = returns_views
        self._changed: set[int] = set()

    def leave_out(self, plan: Definition, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Leave out a command."""
        for n in plan.writes:
            self._changed |= self._of(inputs[n])
        seen: set[int] = set().union(*map(self._of, inputs)) if self._returns_views(plan) else set()
        for slot in outputs:
            self._memory.extend([set()] * (slot + 1 - len(self._memory)))
            self._memory[slot] = seen

    @property
    def slots(self) -> frozenset[int]:
        """The slots whose values would have been changed."""
        return frozenset(slot for slot, memory in enumerate(self._before) if memory & self._changed)

    def _of(self, slot: int) -> set[int]:
        return self._memory[slot] if slot < len(self._memory) else set()


def _memory_of(value: Any) -> set[int]:
    return {_key(x.untyped_storage()) for x in _tensors(value) if x.layout == torch.strided}


def _tensors(value: Any) -> list[torch.Tensor]:
    return [_local(x) for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def offered(table: Sequence[Any], slots: Sequence[int], meshes: Meshes) -> tuple[Offer, list[torch.Tensor]]:
    """Return what of these values can be given, and the memory in which it lies, as bytes."""
    memories: dict[int, tuple[int, torch.Tensor]] = {}
    values = {}
    numbers = {id(mesh): number for number, mesh in meshes.by_number.items()}
    for slot in slots:
        value = table[slot] if slot < len(table) else None
        if not isinstance(value, DTensor) or id(value.device_mesh) not in numbers:
            continue
        local = local_of(value)
        if isinstance(local, AsyncCollectiveTensor) and not local.completed:
            continue  # others may have gone before they had sent their part
        local = _local(value)
        if local.layout != torch.strided:
            continue
        storage = local.untyped_storage()
        whole = _bytes_of(storage)
        number, _ = memories.setdefault(_key(storage), (len(memories), whole))
        values[slot] = Copied(
            number, tuple(local.shape), local.stride(), int(local.storage_offset()), local.dtype,
            numbers[id(value.device_mesh)], tuple(value.placements), tuple(value.shape), value.stride(),
            version_of(local),
        )  # fmt: skip
    parts = [whole for _, whole in memories.values()]
    return Offer(tuple(part.numel() for part in parts), values), parts


def exchange(gifts: Sequence[Gift], table: list[Any], meshes: Meshes, rank: int) -> None:
    """Give and take values. All ranks concerned do so together, in the same order."""
    for number, gift in enumerate(gifts):
        if rank not in (gift.donor, gift.target):
            continue
        with meshes.pair(f"gift.{number}", gift.donor, gift.target) as group:
            if rank == gift.donor:
                _, memories = offered(table, list(gift.offer.values), meshes)
                _all(group.send([each], 1, 0) for each in memories if each.numel())
            else:
                _receive(gift, group, table, meshes)


def _receive(gift: Gift, group: Any, table: list[Any], meshes: Meshes) -> None:
    memories = [torch.empty(size, dtype=torch.uint8, device=device_type()) for size in gift.offer.memories]
    _all(group.recv([each], 0, 0) for each in memories if each.numel())
    for slot, value in gift.offer.values.items():
        table[slot] = _placed(value, memories, meshes)


def _all(works: Iterable[Any]) -> None:
    for each in works:
        each.wait()


def _placed(value: Copied, memories: Sequence[torch.Tensor], meshes: Meshes) -> DTensor:
    whole = memories[value.memory]
    set_version(whole, value.version)  # which its views share
    elements = whole[: whole.numel() // value.dtype.itemsize * value.dtype.itemsize].view(value.dtype)
    part = elements.as_strided(value.size, value.stride, value.offset)
    made = DTensor.from_local(
        part, meshes.by_number[value.grid], value.placements,
        run_check=False, shape=torch.Size(value.whole_size), stride=value.whole_stride,
    )  # fmt: skip
    # That has taken a view, in which a dimension of one element has another stride than on the other ranks:
    # torch looks at it when it decides whether two tensors are the same.
    return wrapped(part, spec_of(made))


def _bytes_of(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _key(storage: Any) -> int:
    return int(storage.data_ptr()) or id(storage)


def _local(value: torch.Tensor) -> torch.Tensor:
    local = local_of(value) if isinstance(value, DTensor) else value
    return local.elem if isinstance(local, AsyncCollectiveTensor) else local  # a wrapper has no memory
