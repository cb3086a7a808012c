"""TorchTitan's trainer on replica groups: by its own `experiments.torchft`, on CPUs too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from monarch_nb.exceptions import MeshUsageError


def train_titan(*words: str) -> None:
    """Train by TorchTitan in this rank's replica group; call it by `ReplicaGroups.run`. A group that dies is
    healed, and takes over weights, optimiser state and step from another group, while the others continue.

    The config is a `FaultTolerantTrainer.Config` of `torchtitan.experiments.torchft`. TorchTitan sends its
    state to a returning group only with `checkpoint.enable`. On CPUs use DiLoCo
    (`fault_tolerance.semi_sync_method`), which synchronises groups every `sync_steps` steps.

    Args:
        words: the arguments of `torchtitan.train`. Those about the number and index of groups are added, and
            on a machine without GPU that for Gloo.

    Raises:
        MeshUsageError: if it isn't called by `ReplicaGroups.run`.
        ModuleNotFoundError: if torchtitan isn't installed.
        SystemExit: if TorchTitan doesn't know an argument.

    Example:
        >>> groups = ReplicaGroups(mesh, "replicas", min_replicas=1)             # doctest: +SKIP
        >>> groups.run(train_titan, "--module", "my_llama", "--config", "small")  # doctest: +SKIP
    """
    from monarch_nb.spmd import titan

    with _as_program(["torchtitan", *words, *_own_words()]):
        titan.main()


def _own_words() -> list[str]:
    import torch

    group, num = os.environ.get("REPLICA_GROUP_ID"), os.environ.get("NUM_REPLICA_GROUPS")
    if group is None or num is None:
        raise MeshUsageError(
            "train_titan runs in a replica group: "
            "ReplicaGroups(mesh, 'replicas').run(train_titan, '--module', ...)"
        )
    found = {"replica_id": group, "group_size": num}
    if not torch.accelerator.is_available():
        found["process_group"] = "gloo"
    return [
        "--fault_tolerance.enable",
        *(f"--fault_tolerance.{name}={value}" for name, value in found.items()),
    ]


@contextmanager
def _as_program(argv: list[str]) -> Iterator[None]:
    """Set up this rank like a process of torchrun: arguments, working directory, rank numbers."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = {
        "LOCAL_RANK": "0" if visible and "," not in visible else os.environ["RANK"],
        # the group has a store; TorchTitan would start another one at that address
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    before, path = {name: os.environ.get(name) for name in numbers}, list(sys.path)
    sys.path.insert(0, os.getcwd())
    sys.argv, argv = argv, sys.argv
    os.environ.update(numbers)
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
