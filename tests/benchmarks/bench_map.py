"""mesh.map beside the ideal schedule, and the same tasks bound at submission: `python
tests/benchmarks/bench_map.py [RANKS]`.

100 tasks that sleep 5 to 60 ms, 20 ms in the mean. The ideal is list scheduling without any cost: each task
goes to the rank that is free first.
"""

from __future__ import annotations

import heapq
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from bench_actor import wait_until_warm

from monarch_nb import mesh as meshes

NUM_TASKS, MEAN_S, ROUNDS = 100, 0.02, 5


def uneven() -> list[float]:
    """Return how long each task takes, in seconds."""
    draw = random.Random(0)
    lengths = [draw.choice((0.25, 0.25, 0.5, 1.0, 3.0)) for _ in range(NUM_TASKS)]
    return [MEAN_S * each * NUM_TASKS / sum(lengths) for each in lengths]


def ideal(lengths: list[float], num_ranks: int) -> float:
    """Return when the last one ends, in seconds."""
    free = [0.0] * num_ranks
    for length_s in lengths:
        heapq.heappush(free, heapq.heappop(free) + length_s)
    return max(free)


def took(run: object) -> float:
    """Return how long a call takes, in seconds."""
    began = time.perf_counter()
    run()  # type: ignore[operator]
    return time.perf_counter() - began


def main() -> None:
    num_ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    lengths = uneven()
    mesh = meshes.start("bench-map", {"procs": num_ranks}, with_program=True)
    wait_until_warm()
    with ProcessPoolExecutor(num_ranks) as pool:
        list(pool.map(time.sleep, [0.0] * num_ranks))
        mesh.map(time.sleep, [0.0] * num_ranks).get()
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(took(lambda: mesh.map(time.sleep, lengths).get()))
            theirs.append(took(lambda: list(pool.map(time.sleep, lengths))))
    floor = ideal(lengths, num_ranks)
    print(f"ideal {floor * 1e3:.0f} ms; mesh.map {min(ours) * 1e3:.0f} ms ({min(ours) / floor:.3f}); "
          f"ProcessPoolExecutor.map {min(theirs) * 1e3:.0f} ms ({min(theirs) / floor:.3f})")  # fmt: skip
    mesh.stop().get(30)


if __name__ == "__main__":
    main()
