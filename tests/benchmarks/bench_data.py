"""numpy, Arrow, Polars and bytes from a notebook to a rank beside one copy of as many bytes:
`python tests/benchmarks/bench_data.py [MIB]`.

The aim is 1.3 copies. Each is pushed in turn with the copy; the least of the rounds is taken, and this
program's CPU time with the rank's.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy
import psutil
from bench_actor import wait_until_warm

from monarch_nb import mesh as meshes

ROUNDS = 7


def values(num_bytes: int) -> dict[str, Any]:
    """Return values of `num_bytes` each, by name; of libraries that are installed."""
    array = numpy.arange(num_bytes // 8)
    found: dict[str, Any] = {
        "numpy": array,
        "bytes": array.tobytes(),
        "bytearray": bytearray(array.tobytes()),
    }
    try:
        import pyarrow

        found["Arrow"] = pyarrow.table({"a": array})
        import polars

        found["Polars"] = polars.DataFrame({"a": array})
    except ImportError as error:
        print(f"left out: {error}")
    return found


def main() -> None:
    num_bytes = (int(sys.argv[1]) if len(sys.argv) > 1 else 256) << 20
    mesh = meshes.start("bench-data", {"procs": 1}, with_program=True)
    wait_until_warm()
    processes = [psutil.Process(), psutil.Process(mesh.status().ranks[0].pid)]
    source = numpy.ones(num_bytes, dtype=numpy.uint8)
    target = numpy.zeros_like(source)

    def cpu_s() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    for kind, value in values(num_bytes).items():
        copies, pushes, cpus = [], [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            target[:] = source
            copies.append(time.perf_counter() - began)
            began, before = time.perf_counter(), cpu_s()
            mesh.push({"value": value})
            pushes.append(time.perf_counter() - began)
            cpus.append(cpu_s() - before)
        rate = num_bytes / min(pushes) / (1 << 30)
        print(
            f"{kind:<10} {min(pushes) * 1e3:7.1f} ms, {rate:5.2f} GiB/s, {min(pushes) / min(copies):5.2f} "
            f"copies (a copy {min(copies) * 1e3:.1f} ms), CPU {min(cpus) * 1e3:.0f} ms",
            flush=True,
        )
    mesh.stop().get(30)


if __name__ == "__main__":
    main()
