"""More large values under way than a process has descriptors for: they travel in another way."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import numpy
from monarch_nb.actor import Actor, endpoint, this_host

class Keeper(Actor):
    def __init__(self):
        self.kept = []

    @endpoint
    def keep(self, value):
        self.kept.append(value)
        return int(value[-1])

    @endpoint
    def sums(self):
        return [int(value.sum()) for value in self.kept]

keeper = this_host().spawn_procs({"gpus": 2}).spawn("keeper", Keeper)
size = int(sys.argv[1])
futures = []
for number in range(200):
    value = numpy.zeros(size, dtype=numpy.uint8)
    value[-1] = number
    futures.append(keeper.keep.call(value))
for number, future in enumerate(futures):
    assert list(future.get(60).values()) == [number, number], number
assert all(found == list(range(200)) for found in keeper.sums.call().get(60).values())
print("all kept")
"""


@pytest.mark.parametrize("num_bytes", [200_000, 2 << 20])
def test_values_that_are_kept_take_no_more_than_there_are(num_bytes: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(num_bytes)], capture_output=True, text=True, timeout=200
    )
    assert done.stdout.strip() == "all kept", done.stdout + done.stderr
