"""Saves and loads tensors of the mesh: each rank writes and reads its parts, in the files of
torch.distributed.checkpoint. Another number of ranks, or another layout, may read them.
"""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.tensor import DTensor
from torch.distributed.tensor import zeros as sharded_zeros
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.meshes import POLL_S, Meshes
from monarch_nb._runtime.snapshot import load, save, take_snapshot

PREFIX = "state"
PART = ".part"


class Checkpoints:
    """The saving and loading of tensors on this rank.

    Args:
        meshes: device meshes of the engine, on which its ranks meet.
    """

    def __init__(self, meshes: Meshes) -> None:
        self._meshes = meshes
        self._number = 0

    def save(self, state: Any, path: str) -> None:
        """Write a state dict, together with the other ranks. What stands at `path` is whole: it's written
        beside it, and gets its name in the end.
        """
        self._number += 1
        part, is_first = path + PART, self._meshes.rank == 0
        if is_first:
            shutil.rmtree(part, ignore_errors=True)
            os.makedirs(part)
        self._exchange("begin", None)
        save(take_snapshot(state, 0, {}), PREFIX, part, self._meshes.rank, self._exchange)
        if is_first:
            shutil.rmtree(path, ignore_errors=True)
            os.replace(part, path)
        self._exchange("end", None)

    def _exchange(self, phase: str, value: Any) -> list[Any]:
        """Give a value to all ranks, and return theirs in order."""
        meshes, where = self._meshes, f"checkpoint/{self._meshes.epoch}/{self._number}/{phase}"
        meshes.store.set(f"{where}/{meshes.rank}", pickle.dumps(value))
        keys = [f"{where}/{rank}" for rank in meshes.all_ranks]
        while not meshes.store.check(keys):
            meshes.check()
            time.sleep(POLL_S)
        return [pickle.loads(meshes.store.get(key)) for key in keys]

    def load(self, state: Any, path: str) -> bytes:
        """Fill the tensors of a state dict with what was saved; return what else was, pickled."""
        if not os.path.isdir(path):
            raise FileNotFoundError(f"no checkpoint at {path}")
        found = load(path, PREFIX, state)
        if found is None:
            raise FileNotFoundError(f"nothing of monarch_nb.save at {path}")
        return pickle.dumps(pytree.tree_map(_without_shards, found[1]))

    def zeros(self, size: tuple[int, ...], dtype: Any, grid: int, placements: Any) -> DTensor:
        """Return a tensor to be filled."""
        return sharded_zeros(
            *size, dtype=dtype, device_mesh=self._meshes.by_number[grid], placements=placements
        )


def _without_shards(value: Any) -> Any:
    return None if isinstance(value, DTensor) else value


def operations(meshes: Meshes) -> dict[str, Callable[..., Any]]:
    """Return the executor's operations on checkpoints, by name."""
    made = Checkpoints(meshes)
    return {"own.save": made.save, "own.load": made.load, "own.zeros": made.zeros}
