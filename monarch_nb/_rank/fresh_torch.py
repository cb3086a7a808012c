"""Resets torch to the state of a fresh process: no process group, new random numbers, no changed defaults.
Does nothing where torch isn't imported yet.

Process groups of the cells are set aside, not ended: a mesh that was started with `--init-process-group` has
its own again afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from monarch_nb._rank.collectives import count_groups_anew
from monarch_nb._wire.loaded import loaded

_TABLES = (
    "pg_map",
    "pg_names",
    "pg_group_ranks",
    "pg_backend_config",
    "tags_to_pg",
    "pg_to_tag",
    "pg_coalesce_state",
)


@contextmanager
def fresh_torch() -> Iterator[None]:
    """Present torch to a program as in a new process; restore its state afterwards, and end the program's
    process groups.
    """
    torch = loaded("torch")
    settings = None if torch is None else _Settings.of(torch)
    groups = _set_aside(torch)
    count_groups_anew()
    has_failed = True
    try:
        yield
        has_failed = False
    finally:
        _end_groups(is_hard=has_failed)
        count_groups_anew()
        if groups is not None:
            _put_back(groups)
        if settings is not None:
            settings.put_back(torch)


class _Settings(msgspec.Struct, frozen=True):
    """The settings of torch that a program may change, as they were before."""

    dtype: Any
    device: Any
    is_deterministic: bool
    num_threads: int
    random_state: Any

    @classmethod
    def of(cls, torch: Any) -> _Settings:
        """Record the settings, and set those of a new process."""
        found = cls(
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
            torch.get_rng_state(),
        )
        torch.set_default_dtype(torch.float32)
        _set_device(torch, torch.device("cpu"))
        torch.seed()  # a new process has another one each time
        return found

    def put_back(self, torch: Any) -> None:
        """Restore torch's previous settings."""
        torch.set_default_dtype(self.dtype)
        _set_device(torch, self.device)
        if (
            torch.are_deterministic_algorithms_enabled() != self.is_deterministic
        ):  # setting it imports the compiler
            torch.use_deterministic_algorithms(self.is_deterministic)
        torch.set_num_threads(self.num_threads)
        torch.set_grad_enabled(True)
        torch.set_rng_state(self.random_state)


def _set_device(torch: Any, device: Any) -> None:
    if torch.get_default_device() != device:
        torch.set_default_device(None if device.type == "cpu" else device)


class _Groups(msgspec.Struct, frozen=True):
    """The process groups that are put aside while a program runs."""

    default: Any
    tables: dict[str, Any]
    num: int


def _c10d() -> Any:
    """Return torch's registry of process groups; None if nobody has made one."""
    distributed = getattr(loaded("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.distributed_c10d


def _set_aside(torch: Any) -> _Groups | None:
    c10d = _c10d()
    if c10d is None:
        return None
    world = c10d._world
    groups = _Groups(
        world.default_pg, {name: dict(getattr(world, name)) for name in _TABLES}, world.group_count
    )
    for name in _TABLES:
        getattr(world, name).clear()
    c10d._unregister_all_process_groups()
    c10d._update_default_pg(None)
    world.group_count = 0
    return groups


def _put_back(groups: _Groups) -> None:
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    world = c10d._world
    for name, table in groups.tables.items():
        getattr(world, name).update(table)
    for group, name in groups.tables["pg_names"].items():
        c10d._register_process_group(name, group)
    world.group_count = groups.num
    c10d._update_default_pg(groups.default)


def _end_groups(*, is_hard: bool) -> None:
    """End a program's process groups: at the end of its process they'd end, too.

    Args:
        is_hard: the program has failed: its peers may never come to what these groups wait for.
    """
    c10d = _c10d()
    if c10d is None:
        return
    with suppress(Exception):  # errors of an aborted group
        if is_hard and "nccl" in str(c10d.get_backend()):
            c10d._abort_process_group()
        else:
            c10d.destroy_process_group()
