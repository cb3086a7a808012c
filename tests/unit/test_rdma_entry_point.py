"""A path of somebody else's, installed like any package, is tried after those of one machine and before
verbs and tcp.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PLUGIN = """
from monarch_nb.rdma.path import READ, Path


class Pigeon(Path):
    name = "pigeon"

    def refusal(self, handle, local):
        return "" if handle.nbytes < 100 else "too heavy for a pigeon"

    def transfer(self, job):
        region = self.plane.region_of(job.handle)
        for there, here, n in job.pieces():
            job.local.bytes_at(here, n)[:] = region.memory.bytes_at(there, n)
        job.moved(job.nbytes)


class Broken(Pigeon):
    def __init__(self, plane):
        raise OSError("no feathers")
"""

PROGRAM = """
import warnings
from monarch_nb.rdma import RDMABuffer
from monarch_nb.rdma.data_plane import DataPlane, use
from monarch_nb.rdma.link import LoopLink

use(plane := DataPlane(LoopLink()))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(list(plane.paths))
print(caught[0].message)
room = bytearray(5)
print(RDMABuffer(b"hello").read_into(room, path="pigeon").get().path, room.decode())
try:
    RDMABuffer(bytes(200)).read_into(bytearray(200), path="pigeon").get()
except Exception as error:
    print(type(error).__name__, str(error).split(": ", 1)[1])
plane.close()
"""


def test_a_path_by_entry_point(tmp_path: Path) -> None:
    (tmp_path / "pigeon.py").write_text(PLUGIN)
    info = tmp_path / "pigeon-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[monarch_nb.rdma_paths]\npigeon = pigeon:Pigeon\nbroken = pigeon:Broken\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    order, warned, moved, refused = done.stdout.splitlines()
    assert order == "['local', 'cuda_ipc', 'shm', 'pigeon', 'verbs', 'tcp', 'message']"
    assert warned == "the RDMA path 'broken' (pigeon:Broken) can't be used: no feathers"
    assert moved == "pigeon hello"
    assert refused.startswith("PathFailed no path moves bytes between") or "too heavy for a pigeon" in refused
