"""Random parts of random memory by every path, checked against numpy; readers and writers at the same time
on parts that don't overlap.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator

import numpy
import pytest
from memory_actors import Holder

from monarch_nb.actor import ProcMesh
from monarch_nb.exceptions import ActorError, RDMAError, SupervisionError
from monarch_nb.rdma import RDMABuffer, use_path

PATHS = ["shm", "tcp", "message"]
DTYPES = ["uint8", "float16", "int32", "float64", "complex128"]


@pytest.fixture(scope="module")
def owner(procs: ProcMesh) -> Iterator[Holder]:
    return procs.spawn("owners", Holder).slice(ranks=1)


def _array(rng: random.Random) -> numpy.ndarray:
    dtype = rng.choice(DTYPES)
    num_bytes = int(2 ** rng.uniform(0, 23))
    shape = [max(1, num_bytes // numpy.dtype(dtype).itemsize)]
    for _ in range(rng.randrange(3)):
        inner = rng.randint(1, max(1, min(64, shape[0])))
        shape = [max(1, shape[0] // inner), *shape[1:], inner]
    raw = numpy.frombuffer(rng.randbytes(int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize), numpy.uint8)
    return raw.view(dtype).reshape(shape).copy()


def _index(rng: random.Random, shape: tuple[int, ...]) -> tuple[slice | int, ...]:
    found: list[slice | int] = []
    for n in shape[: rng.randint(0, len(shape))]:
        start = rng.randrange(n)
        found.append(slice(start, rng.randint(start + 1, n), rng.choice([1, 1, 1, 2, 3])))
    return tuple(found)


def _room(rng: random.Random, part: numpy.ndarray) -> numpy.ndarray:
    """Somewhere to read into: contiguous, or strided, or turned round."""
    kind = rng.randrange(3)
    if kind == 0 or part.ndim == 0:
        return numpy.zeros_like(part)
    if kind == 1:
        return numpy.zeros(part.shape[::-1], part.dtype).T
    return numpy.zeros((*part.shape[:-1], 2 * part.shape[-1]), part.dtype)[..., ::2]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("seed", range(12))
def test_any_part_of_anything(owner: Holder, path: str, seed: int) -> None:
    rng = random.Random(seed)
    values = _array(rng)
    buffer = owner.put.call_one("x", values, rng.random() < 0.3).get()
    with use_path(path):
        for _ in range(4):
            index = _index(rng, values.shape)
            part = values[index]
            room = _room(rng, part)
            receipt = buffer[index].read_into(room).get()
            assert receipt.path == path
            assert room.tobytes() == part.tobytes()
            new = _room(rng, part)
            new[...] = numpy.frombuffer(rng.randbytes(part.nbytes), part.dtype).reshape(part.shape)
            buffer[index].write_from(new).get()
            values[index] = new
    assert owner.get.call_one("x").get().tobytes() == values.tobytes()
    buffer.drop()


@pytest.mark.parametrize("path", PATHS)
def test_readers_and_writers_at_once(owner: Holder, path: str) -> None:
    num, length = 8, 200_000
    buffer = owner.put.call_one("y", numpy.zeros((num, length), numpy.int64)).get()
    wrong: list[str] = []

    def work(k: int) -> None:
        rng = random.Random(k)
        mine, room = buffer[k], numpy.zeros(length, numpy.int64)
        for turn in range(5):
            values = numpy.full(length, rng.getrandbits(40))
            mine.write_from(values, path=path).get()
            mine.read_into(room, path=path).get()
            if (room != values).any():
                wrong.append(f"row {k}, turn {turn}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    buffer.drop()


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_a_gibibyte(owner: Holder, path: str) -> None:
    """Large enough that nothing in between counts in 32 bits, and odd."""
    length = (1 << 30) + 7
    buffer = owner.put_pattern.call_one("big", length).get()
    room = numpy.empty(length, numpy.uint8)
    buffer.read_into(room, path=path).get()
    assert hashlib.sha256(room.data).hexdigest() == owner.digest.call_one("big").get()
    room[:] = 3
    buffer.write_from(room, path=path).get()
    assert hashlib.sha256(room.data).hexdigest() == owner.digest.call_one("big").get()
    owner.forget.call_one("big").get()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mappable", [False, True])
def test_an_owner_killed_in_the_middle_is_never_a_success(procs: ProcMesh, path: str, mappable: bool) -> None:
    mesh = procs.host_mesh.spawn_procs(per_host={"doomed": 1})
    flat = mesh.flatten("all") if len(mesh.extent) > 1 else mesh.rename(doomed="all")
    doomed = flat.slice(all=0).spawn("doomed", Holder)
    values = numpy.full(64 << 20, 9, numpy.uint8)
    buffer: RDMABuffer = doomed.put.call_one("w", values, mappable).get()
    room = numpy.zeros_like(values)
    buffer.read_into(room, path=path).get()
    outcomes = []
    doomed.die.broadcast()
    while True:  # until it's dead: any number of good ones, then an error, and never a wrong one
        room[:] = 0
        try:
            buffer.read_into(room, path=path).get()
        except RDMAError as error:
            outcomes.append(str(error))
            break
        assert (room == 9).all()
    assert "gone" in outcomes[0] or "ended" in outcomes[0]
    with pytest.raises((SupervisionError, ActorError)):
        doomed.get.call_one("w").get()
    mesh.stop(grace_s=0.0).get(30)


@pytest.mark.parametrize("path", PATHS)
def test_dropped_in_the_middle_is_never_wrong_bytes(owner: Holder, path: str) -> None:
    """The owner drops, and writes over the memory at once."""
    for _ in range(5):
        values = numpy.full(16 << 20, 5, numpy.uint8)
        buffer = owner.put.call_one("z", values).get()
        done = owner.drop_and_spoil.call_one("z")
        room = numpy.zeros_like(values)
        try:
            buffer.read_into(room, path=path).get()
        except RDMAError as error:
            assert "dropped" in str(error)  # noqa: PT017
        else:
            assert (room == 5).all()
        done.get()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mappable", [False, True])
def test_after_a_drop_nobody_writes(owner: Holder, path: str, mappable: bool) -> None:
    """The owner drops while somebody writes, and uses the memory for something else as soon as drop() has
    returned.
    """
    for _ in range(5):
        buffer = owner.put.call_one("v", numpy.zeros(16 << 20, numpy.uint8), mappable).get()
        done = owner.drop_and_spoil.call_one("v")
        try:
            buffer.write_from(numpy.full(16 << 20, 5, numpy.uint8), path=path).get()
        except RDMAError as error:
            assert "dropped" in str(error)  # noqa: PT017
        done.get()
        assert (owner.get.call_one("v").get() == 77).all()
