"""Processors for the ranks of a benchmark, and others for what drives them.

With BENCH_APART=1 ranks share the last processor, and what drives them has the others, as on a machine with
more processors than ranks: where ranks fill all there are, a step's wall seconds include the program's. But
each rank's gloo, which waits for the other one in a loop, then takes time from that.
"""

from __future__ import annotations

import os

from monarch_nb.distributed import Mesh


def move_to(processors: set[int]) -> int:
    """Run all threads of this process on some processors only; return the parent process."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), processors)
    return os.getppid()


def move_apart(mesh: Mesh) -> None:
    """Give the ranks the last processor, and this process and the one that starts ranks the others, if
    BENCH_APART=1.
    """
    if os.environ.get("BENCH_APART") != "1":
        return
    *others, last = sorted(os.sched_getaffinity(0))
    move_to(set(others))
    host = mesh.execute(move_to, {last})  # one number: all ranks say the same
    for thread in os.listdir(f"/proc/{host}/task"):
        os.sched_setaffinity(int(thread), others)
