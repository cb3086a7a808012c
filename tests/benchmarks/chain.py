"""A chain of operations on tensors of which each rank has its own, one after the other: how many a second are
done on all ranks. `monarch_nb` and Monarch run the same lines.

Run: `python chain.py PACKAGE RANKS OPERATIONS`. Prints a number for each round.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any

import torch

ROUNDS = 4


def run(package: str, ranks: int, operations: int) -> None:
    """Print operations a second, by round; the first one warms up."""
    fetch_shard: Any = importlib.import_module(package).fetch_shard
    actor: Any = importlib.import_module(f"{package}.actor")
    procs = actor.this_host().spawn_procs(per_host={"gpus": ranks})
    with procs.activate():
        x = torch.zeros(4)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for _ in range(operations):
                x = x.neg()
            value = fetch_shard(x)
            (value.get if package == "monarch_nb" else value.result)()
            print(operations / (time.perf_counter() - began), flush=True)
    procs.stop().get()


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)  # Monarch's processes end with this one; its own exit takes seconds
