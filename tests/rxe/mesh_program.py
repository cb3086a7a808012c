"""A mesh of two ranks and this program, whose bytes go by verbs, and whose ranks have limits: `python
mesh_program.py`, inside the virtual machine.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy

from monarch_nb import mesh as meshes
from monarch_nb.actor import Actor, endpoint
from monarch_nb.exceptions import BufferGone
from monarch_nb.rdma import RDMABuffer, Receipt, get_rdma_backend, is_ibverbs_available

GROUPS = Path("/sys/fs/cgroup")
VALUES = numpy.random.default_rng(5).random((300, 500))


class Holder(Actor):
    @endpoint
    def put(self) -> RDMABuffer:
        self.values = VALUES.copy()
        self.buffer = RDMABuffer(self.values)
        return self.buffer

    @endpoint
    def get(self) -> Any:
        return self.values

    @endpoint
    def drop(self) -> None:
        self.buffer.drop()

    @endpoint
    def read(self, buffer: RDMABuffer) -> tuple[Any, Receipt]:
        room = numpy.zeros(buffer.shape)
        return room, buffer.read_into(room, path="verbs").get()


def moves(holders: Any) -> None:
    owner, reader = holders.slice(gpus=0), holders.slice(gpus=1)
    buffer = owner.put.call_one().get()
    found, receipt = reader.read.call_one(buffer).get()
    assert (found == VALUES).all()
    assert receipt.path == "verbs", receipt
    room = numpy.zeros((300, 250))
    buffer[:, ::2].read_into(room, path="verbs").get()
    assert (room == VALUES[:, ::2]).all()
    buffer[10:20].write_from(-VALUES[10:20], path="verbs").get()
    assert (owner.get.call_one().get()[10:20] == -VALUES[10:20]).all()
    owner.drop.call_one().get()
    try:
        buffer.read_into(numpy.zeros((300, 500)), path="verbs").get()
    except BufferGone as error:
        print(error)
    else:
        raise AssertionError("a dropped buffer was read")


def are_limited(mesh: Any) -> None:
    """See that the ranks are in control groups, which only this kernel has, and that these hold."""
    for own, threads in mesh.execute(own_group).get(60).values():
        group = GROUPS / own
        assert group.name.startswith("mnb-") and threads == "1", (own, threads)
        assert (group / "memory.max").read_text() == f"{300 << 20}\n"
        assert (group / "cpu.max").read_text() == "150000 100000\n"
    error = mesh.slice(gpus=1).execute(use_memory).exception(60)
    assert "it used more than its limit of 300 MiB" in str(error), error
    assert mesh.slice(gpus=0).execute(use_memory, 50 << 20).get(60).item() == 50 << 20


def own_group() -> tuple[str, str]:
    (line,) = [each for each in Path("/proc/self/cgroup").read_text().splitlines() if each.startswith("0::")]
    return line.removeprefix("0::/"), os.environ["OMP_NUM_THREADS"]


def use_memory(num_bytes: int = 500 << 20) -> int:
    return len(b"x" * num_bytes)


def main() -> None:
    subprocess.run(["mount", "-t", "cgroup2", "none", GROUPS], check=True)
    mesh = meshes.start("rxe", {"gpus": 2}, env={"MONARCH_NB_LIMIT": "memory=300M,cpus=1.5"})
    try:
        moves(mesh.spawn("holders", Holder))
        assert is_ibverbs_available()
        assert get_rdma_backend() == "ibverbs"
        text = mesh.doctor(size_bytes=1 << 20).text()
        assert "rxe0" in text, text
        print(text)
        are_limited(mesh)
    finally:
        mesh.stop().get(60)
    assert not list(GROUPS.glob("mnb-*")), "nothing is left"


if __name__ == "__main__":
    main()
