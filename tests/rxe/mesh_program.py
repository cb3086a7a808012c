"""A mesh of two ranks and this program, whose bytes go by verbs: `python mesh_program.py`, inside the
virtual machine.
"""

from __future__ import annotations

from typing import Any

import numpy

from monarch_nb import mesh as meshes
from monarch_nb.actor import Actor, endpoint
from monarch_nb.exceptions import BufferGone
from monarch_nb.rdma import RDMABuffer, Receipt, get_rdma_backend, is_ibverbs_available

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


def main() -> None:
    mesh = meshes.start("rxe", {"gpus": 2})
    try:
        moves(mesh.spawn("holders", Holder))
        assert is_ibverbs_available()
        assert get_rdma_backend() == "ibverbs"
        text = mesh.doctor(size_bytes=1 << 20).text()
        assert "rxe0" in text, text
        print(text)
    finally:
        mesh.stop().get(60)


if __name__ == "__main__":
    main()
