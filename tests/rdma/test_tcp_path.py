"""The tcp path between two processes: exact bytes, or an error; never one for the other."""

from __future__ import annotations

import gc
import hashlib
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy
import psutil
import pytest
from middleman import Middleman
from msgspec import structs
from two_planes import TwoPlanes

from monarch_nb.exceptions import BufferGone, MeshUsageError, PathFailed, RDMAError, TransferTimeout
from monarch_nb.rdma.data_plane import DataPlane
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.layout import Layout, Piece
from monarch_nb.rdma.memory import memory_of
from monarch_nb.rdma.path import Job
from monarch_nb.rdma.paths import notice
from monarch_nb.rdma.paths.tcp import address as tcp_address
from monarch_nb.rdma.paths.tcp import checksum as tcp_checksum
from monarch_nb.rdma.paths.tcp import listener as tcp_listener
from monarch_nb.rdma.paths.tcp import wire as tcp_wire
from monarch_nb.rdma.paths.tcp.dial import Unreachable, dial
from monarch_nb.rdma.paths.tcp.exchange import chunks
from monarch_nb.rdma.paths.tcp.handshake import Answering, Dialling, NotAuthenticated
from monarch_nb.rdma.paths.tcp.path import TcpPath
from monarch_nb.rdma.paths.tcp.questions import Dial, Open
from monarch_nb.rdma.question import Question

PATIENCE_S = 30.0
SECRET = b"s" * 32
MIB = 1 << 20
kept: dict[int, Any] = {}
"""Over there: what was given, by key."""


def data(seed: int, nbytes: int) -> Any:
    return numpy.random.default_rng(seed).integers(0, 256, nbytes, numpy.uint8)


# --- what runs in the other process


def give(plane: DataPlane, seed: int, nbytes: int, read_only: bool = False) -> Handle:
    array = data(seed, nbytes)
    array.flags.writeable = not read_only
    handle = plane.register(memory_of(array))
    kept[handle.key] = array
    return handle


def give_array(plane: DataPlane, array: Any) -> Handle:
    handle = plane.register(memory_of(array))
    kept[handle.key] = array
    return handle


def content(plane: DataPlane, handle: Handle) -> Any:
    return kept[handle.key]


def digest(plane: DataPlane, handle: Handle) -> str:
    return hashlib.sha256(kept[handle.key]).hexdigest()


def drop(plane: DataPlane, handle: Handle) -> bool:
    """Return whether the memory was given back."""
    array = kept.pop(handle.key)
    watch = weakref.ref(array)
    del array
    plane.drop(handle)
    gc.collect()
    return watch() is None


def num_streams(plane: DataPlane) -> int:
    path = plane.paths["tcp"]
    assert isinstance(path, TcpPath)
    return path.server.num_streams


def cut_all(plane: DataPlane) -> None:
    path = plane.paths["tcp"]
    assert isinstance(path, TcpPath)
    path.server.cut(list(path.server._serving))


def be_impatient(plane: DataPlane) -> None:
    tcp_listener.HANDSHAKE_S = 0.2


def tcp_sockets(plane: DataPlane | None = None) -> int:
    return len(psutil.Process().net_connections("tcp"))


# --- here


@pytest.fixture(scope="module")
def two() -> Iterator[TwoPlanes]:
    with TwoPlanes() as found:
        yield found


@pytest.fixture
def own() -> Iterator[TwoPlanes]:
    """Two processes of a test's own, which may break them."""
    with TwoPlanes() as found:
        yield found


@pytest.fixture
def between(own: TwoPlanes) -> Iterator[Middleman]:
    """A proxy through which all streams of `own` go."""
    made: list[Middleman] = []

    def divert(asked: Question[Any], answer: Any) -> Any:
        return structs.replace(answer, addresses=[middleman.address]) if isinstance(asked, Open) else answer

    path = own.plane.paths["tcp"]
    assert isinstance(path, TcpPath)
    probe = own.far(give, 0, 1)
    where = own.plane.ask(Open(probe, 1, tcp_address.this_network())).addresses
    middleman = Middleman(where[0])
    made.append(middleman)
    own.link.on_ask = divert
    yield middleman
    middleman.close()


def move(two: TwoPlanes, op: Any, handle: Handle, local: Any, timeout_s: float | None = PATIENCE_S) -> Job:
    """Move bytes by tcp in this thread, without what the data plane does before and after."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    job = Job(op, handle, memory_of(local), deadline)
    two.plane.paths["tcp"].transfer(job)
    return job


def in_thread(function: Callable[[], Any]) -> Any:
    """Begin a call; `.result()` waits for it."""
    pool = ThreadPoolExecutor(1, "in-thread")
    future = pool.submit(function)
    pool.shutdown(wait=False)
    return future


# --- exact


def sizes(rng: random.Random) -> list[int]:
    edges = [
        1,
        7,
        8,
        tcp_wire.SMALL_BYTES,
        tcp_wire.SMALL_BYTES + 1,
        tcp_wire.BLOCK_BYTES - 1,
        tcp_wire.BLOCK_BYTES + 1,
    ]
    return [*edges, 64 * MIB, *(int(2 ** rng.uniform(0, 25)) for _ in range(8))]


def test_any_size_at_any_offset(two: TwoPlanes) -> None:
    rng = random.Random(1)
    for seed, nbytes in enumerate(sizes(rng)):
        shift = rng.randrange(9)
        handle = two.far(give, seed, nbytes + shift)
        into = numpy.zeros(nbytes + 20, numpy.uint8)
        at = rng.randrange(20)
        job = move(two, "read", handle.part(slice(shift, None)), into[at : at + nbytes])
        assert job.done_bytes == nbytes
        assert (into[at : at + nbytes] == data(seed, nbytes + shift)[shift:]).all(), nbytes
        assert not into[:at].any()
        assert not into[at + nbytes :].any()
        assert two.far(drop, handle)


def test_writes_of_any_size(two: TwoPlanes) -> None:
    rng = random.Random(2)
    for seed, nbytes in enumerate(sizes(rng)):
        shift = rng.randrange(9)
        handle = two.far(give, seed, nbytes + 2 * shift)
        new = data(seed + 100, nbytes)
        move(two, "write", handle.part(slice(shift, shift + nbytes)), new)
        expected = data(seed, nbytes + 2 * shift)
        expected[shift : shift + nbytes] = new
        assert two.far(digest, handle) == hashlib.sha256(expected).hexdigest(), nbytes
        assert two.far(drop, handle)


def random_index(rng: random.Random, shape: tuple[int, ...]) -> tuple[slice, ...]:
    found = []
    for n in shape:
        a, b = sorted((rng.randrange(n), rng.randrange(n)))
        found.append(slice(a, b + 1, rng.choice((1, 1, 2, 3))))
    return tuple(found)


@pytest.mark.parametrize("seed", range(12))
def test_strewn_elements_of_any_dtype(two: TwoPlanes, seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice(("uint8", "float32", "float64", "complex128", "int16"))
    shape = tuple(rng.randrange(1, (300, 40, 12)[i]) for i in range(rng.randrange(1, 4)))
    array = numpy.arange(numpy.prod(shape)).reshape(shape).astype(dtype)
    handle = two.far(give_array, array)
    index = random_index(rng, shape)
    wanted = array[index]
    into = numpy.zeros((*wanted.shape, 2), dtype)[..., rng.randrange(2)]  # every other element
    move(two, "read", handle.part(index), into)
    assert (into == wanted).all()
    new = -wanted[..., ::-1].copy()
    move(two, "write", handle.part(index), new)
    array[index] = new
    assert (two.far(content, handle) == array).all()
    as_plane = numpy.zeros(wanted.shape, dtype)
    two.plane.submit([Job("read", handle.part(index), memory_of(as_plane))], "tcp").get(PATIENCE_S)
    assert (as_plane == new).all()


def test_thousands_of_small_stretches_are_few_requests(two: TwoPlanes) -> None:
    pieces = [Piece(2 * i * 24, i * 24, 24) for i in range(5000)]
    assert [len(c.there) for c in chunks(pieces, MIB)] == [1024] * 4 + [904]
    handle = two.far(give, 5, 5000 * 48)
    layout = Layout((5000, 24), (48, 1), 1)
    into = numpy.zeros((5000, 24), numpy.uint8)
    move(two, "read", replace(handle, layout=layout), into)
    assert (into == data(5, 5000 * 48).reshape(5000, 48)[:, :24]).all()


def test_many_at_once_on_disjoint_parts(two: TwoPlanes) -> None:
    part = 3 * MIB + 13
    handle = two.far(give, 3, 8 * part)
    expected = data(3, 8 * part)
    updates = {i: data(50 + i, part) for i in range(0, 8, 2)}
    intos = {i: numpy.zeros(part, numpy.uint8) for i in range(1, 8, 2)}

    def one(i: int) -> None:
        mine = handle.part(slice(i * part, (i + 1) * part))
        for _ in range(3):
            if i in updates:
                move(two, "write", mine, updates[i])
            else:
                intos[i][:] = 0
                move(two, "read", mine, intos[i])
                assert (intos[i] == expected[i * part : (i + 1) * part]).all()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    for i, new in updates.items():
        expected[i * part : (i + 1) * part] = new
    assert two.far(digest, handle) == hashlib.sha256(expected).hexdigest()


def test_streams_are_used_again(own: TwoPlanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_NB_RDMA_STREAMS", "3")
    handle = own.far(give, 1, 32 * MIB)
    into = numpy.zeros(32 * MIB, numpy.uint8)
    for _ in range(5):
        move(own, "read", handle, into)
    assert 1 <= own.far(num_streams) <= 3
    assert (
        len([a for a in own.link.asked if a.to == "tcp"]) <= 3
    )  # for each new stream none, but for the first
    own.far(cut_all)
    into[:] = 0
    move(own, "read", handle, into)
    assert (into == data(1, 32 * MIB)).all()


def test_streams_that_nobody_uses_are_closed(own: TwoPlanes, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own.plane.paths["tcp"]
    assert isinstance(path, TcpPath)
    handle = own.far(give, 1, 100)
    move(own, "read", handle, numpy.zeros(100, numpy.uint8))
    (peer,) = path._peers.values()
    (stream,) = peer._idle
    later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    path._tidy()
    assert stream.sock.fileno() == -1
    assert not path._peers
    monkeypatch.undo()
    move(own, "read", handle, numpy.zeros(100, numpy.uint8))


def test_small_ones_are_quick_once_connected(own: TwoPlanes) -> None:
    path = own.plane.paths["tcp"]
    handle = own.far(give, 1, 4096)
    assert not path.is_quick(handle)
    into = numpy.zeros(4096, numpy.uint8)
    for _ in range(50):
        move(own, "read", handle, into)
    assert path.is_quick(handle) or path._peers[handle.owner.process].round_trip_s >= 0.5e-3  # type: ignore[attr-defined]


# --- gone


def test_a_buffer_that_was_dropped(two: TwoPlanes) -> None:
    handle = two.far(give, 1, MIB)
    other = two.far(give, 2, MIB)
    into = numpy.zeros(MIB, numpy.uint8)
    move(two, "read", handle, into)
    two.far(drop, handle)
    for op in ("read", "write"):
        with pytest.raises(BufferGone, match="has dropped it"):
            move(two, op, handle, into)
    move(two, "read", other, into)
    assert (into == data(2, MIB)).all()


def test_a_drop_in_the_middle_of_a_read(own: TwoPlanes, between: Middleman) -> None:
    handle = own.far(give, 1, 64 * MIB)
    between.down.hold_at = 5 * MIB
    into = numpy.zeros(64 * MIB, numpy.uint8)
    read = in_thread(lambda: move(own, "read", handle, into))
    assert between.down.held.wait(PATIENCE_S)
    assert own.far(drop, handle), "the memory is still held by a stream"
    between.let_go()
    with pytest.raises(BufferGone):
        read.result(PATIENCE_S)


def test_a_drop_in_the_middle_of_a_write(own: TwoPlanes, between: Middleman) -> None:
    handle = own.far(give, 1, 64 * MIB)
    between.up.hold_at = 5 * MIB
    write = in_thread(lambda: move(own, "write", handle, data(2, 64 * MIB)))
    assert between.up.held.wait(PATIENCE_S)
    assert own.far(drop, handle), "the memory is still held by a stream"
    between.let_go()
    with pytest.raises(BufferGone):
        write.result(PATIENCE_S)


@pytest.mark.parametrize("op", ["read", "write"])
def test_an_owner_that_is_killed_in_the_middle(own: TwoPlanes, between: Middleman, op: str) -> None:
    handle = own.far(give, 1, 64 * MIB)
    way = between.down if op == "read" else between.up
    way.hold_at = 5 * MIB
    moving = in_thread(lambda: move(own, op, handle, numpy.zeros(64 * MIB, numpy.uint8)))
    assert way.held.wait(PATIENCE_S)
    own.kill()
    between.let_go()
    with pytest.raises(BufferGone, match="has ended"):
        moving.result(PATIENCE_S)
    with pytest.raises(BufferGone, match="has ended"):
        move(own, op, handle, numpy.zeros(64 * MIB, numpy.uint8))


# --- broken


@pytest.mark.parametrize("nbytes", [1000, 8 * MIB])
@pytest.mark.parametrize("op", ["read", "write"])
def test_a_changed_byte_is_noticed(own: TwoPlanes, between: Middleman, op: str, nbytes: int) -> None:
    handle = own.far(give, 1, nbytes)
    move(own, op, handle, data(1, nbytes))
    way = between.down if op == "read" else between.up
    way.flip_at = way.num_bytes + nbytes // 2 + 100
    with pytest.raises(PathFailed, match="wrong checksum"):
        move(own, op, handle, data(1, nbytes))
    into = numpy.zeros(nbytes, numpy.uint8)
    move(own, "read", handle, into)  # the next is right


@pytest.mark.parametrize("at", range(0, 70, 3))
def test_a_changed_byte_of_a_request_is_no_success(
    own_for_requests: tuple[TwoPlanes, Middleman, Handle], at: int
) -> None:
    own, between, handle = own_for_requests
    new = data(at + 2, 100_000)
    between.up.flip_at = between.up.num_bytes + at
    try:
        move(
            own, "write", handle.part(slice(100, 100_100)), new
        )  # a request that makes no sense is asked again
    except PathFailed:
        return
    found = own.far(content, handle)
    assert (found[100:100_100] == new).all()
    assert (found[:100] == data(1, 200_000)[:100]).all()
    assert (found[100_100:] == data(1, 200_000)[100_100:]).all()


@pytest.fixture
def own_for_requests(own: TwoPlanes, between: Middleman) -> tuple[TwoPlanes, Middleman, Handle]:
    handle = own.far(give, 1, 200_000)
    move(own, "read", handle, numpy.zeros(200_000, numpy.uint8))
    return own, between, handle


@pytest.mark.parametrize("op", ["read", "write"])
def test_a_cut_connection_is_made_anew(own: TwoPlanes, between: Middleman, op: str) -> None:
    handle = own.far(give, 1, 64 * MIB)
    way = between.down if op == "read" else between.up
    way.cut_at = 20 * MIB
    local = numpy.zeros(64 * MIB, numpy.uint8) if op == "read" else data(2, 64 * MIB)
    job = move(own, op, handle, local)
    assert way.cut_at is None
    assert job.done_bytes == job.nbytes
    expected = data(1 if op == "read" else 2, 64 * MIB)
    assert (local == expected).all()
    assert own.far(digest, handle) == hashlib.sha256(expected).hexdigest()


def test_a_connection_that_breaks_twice_is_a_failure(
    own: TwoPlanes, between: Middleman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_NB_RDMA_STREAMS", "1")
    handle = own.far(give, 1, 16 * MIB)
    between.down.treat = lambda data: len(data) < 1000  # type: ignore[method-assign]
    with pytest.raises(PathFailed, match="broke twice"):
        move(own, "read", handle, numpy.zeros(16 * MIB, numpy.uint8))


@pytest.mark.parametrize("give_up", ["timeout", "cancel"])
def test_who_gave_up_has_the_memory_for_themselves(own: TwoPlanes, between: Middleman, give_up: str) -> None:
    handle = own.far(give, 1, 32 * MIB)
    between.down.hold_at = 5 * MIB
    into = numpy.zeros(32 * MIB, numpy.uint8)
    job = Job("read", handle, memory_of(into), time.monotonic() + 1.0 if give_up == "timeout" else None)
    read = in_thread(lambda: own.plane.paths["tcp"].transfer(job))
    assert between.down.held.wait(PATIENCE_S)
    if give_up == "cancel":
        job.cancelled.set()
    with pytest.raises(
        TransferTimeout if give_up == "timeout" else RDMAError, match=r"not over in time|was cancelled"
    ):
        read.result(PATIENCE_S)
    into[:] = 7
    between.close()  # all that was held has gone wherever it could
    assert (into == 7).all()


def test_after_a_write_that_was_given_up_nothing_arrives(own: TwoPlanes, between: Middleman) -> None:
    handle = own.far(give, 1, 32 * MIB)
    between.up.hold_at = 5 * MIB
    with pytest.raises(TransferTimeout):
        move(own, "write", handle, data(2, 32 * MIB), 0.5)
    assert own.far(num_streams) == 0
    between.let_go()
    new = data(3, 32 * MIB)
    move(own, "write", handle, new)
    assert own.far(digest, handle) == hashlib.sha256(new).hexdigest()


# --- refused


def test_what_the_owner_refuses(two: TwoPlanes) -> None:
    handle = two.far(give, 1, 100_000, True)
    assert handle.read_only
    with pytest.raises(PathFailed, match="refuses the write: it's read-only"):
        move(two, "write", replace(handle, read_only=False), data(2, 100_000))
    assert two.far(digest, handle) == hashlib.sha256(data(1, 100_000)).hexdigest()
    for start in (1, 10**6, 2**63):
        beyond = replace(handle, layout=Layout((100_000,), (1,), 1, start))
        with pytest.raises(PathFailed, match=r"refuses the read: bytes .* are none of its 100,000"):
            move(two, "read", beyond, numpy.zeros(100_000, numpy.uint8))
    into = numpy.zeros(100_000, numpy.uint8)
    move(two, "read", handle, into)
    assert (into == data(1, 100_000)).all()


def test_a_key_that_never_was(two: TwoPlanes) -> None:
    handle = two.far(give, 1, 100)
    with pytest.raises(BufferGone):
        move(two, "read", replace(handle, key=handle.key ^ 2), numpy.zeros(100, numpy.uint8))


def test_memory_of_this_process_is_none_of_its_business(two: TwoPlanes) -> None:
    handle = two.plane.register(memory_of(bytearray(10)))
    assert two.plane.paths["tcp"].refusal(handle, memory_of(bytearray(10)))
    two.plane.drop(handle)


# --- peers that don't know the secret


def where(two: TwoPlanes) -> tuple[tuple[str, int], bytes]:
    """Return where the other process listens, and a secret for 7."""
    probe = two.far(give, 0, 1)
    found = two.plane.ask(Open(probe, 7, tcp_address.this_network()))
    return found.addresses[0], found.secret


def heard(sock: socket.socket) -> bytes:
    """Return what comes next; nothing if the connection is closed."""
    try:
        return sock.recv(100)
    except ConnectionResetError:
        return b""


def test_a_stranger_gets_nothing(own: TwoPlanes) -> None:
    own.far(be_impatient)
    address, _ = where(own)
    assert address[0] == "127.0.0.1"
    with (
        socket.create_connection(address, PATIENCE_S) as silent,
        socket.create_connection(address, PATIENCE_S) as rude,
    ):
        rude.sendall(b"GET / HTTP/1.1\r\nHost: a machine learning cluster\r\n\r\n")
        assert heard(rude) == b""
        assert heard(silent) == b""  # after a while
    with socket.create_connection(address, PATIENCE_S) as clever:
        handshake = Dialling(7, b"guessed" * 4)
        clever.sendall(handshake.hello)
        nonce = clever.recv(32, socket.MSG_WAITALL)
        clever.sendall(handshake.receive(nonce))
        assert heard(clever) == b""


def test_a_crowd_of_strangers_keeps_nobody_out(own: TwoPlanes) -> None:
    address, secret = where(own)
    crowd = [socket.create_connection(address, PATIENCE_S) for _ in range(tcp_listener.MAX_PENDING * 2)]
    dial([address], 7, secret, PATIENCE_S).sock.close()
    assert heard(crowd[0]) == b""  # the oldest went
    for sock in crowd:
        sock.close()


def test_a_wrong_secret_is_refused(two: TwoPlanes) -> None:
    address, secret = where(two)
    for name, wrong in ((7, SECRET), (8, secret)):
        with pytest.raises(Unreachable):
            dial([address], name, wrong, PATIENCE_S)
    dial([address], 7, secret, PATIENCE_S).sock.close()


def test_an_impostor_at_the_address_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pretend() -> bytes:
            sock, _ = listening.accept()
            with sock:
                sock.recv(48, socket.MSG_WAITALL)
                sock.sendall(b"n" * 32)
                proof = sock.recv(32, socket.MSG_WAITALL)
                sock.sendall(proof)  # sent back as it came
                return heard(sock)

        met = in_thread(pretend)
        with pytest.raises(Unreachable, match="doesn't know the secret"):
            dial([listening.getsockname()], 7, SECRET, PATIENCE_S)
        assert met.result(PATIENCE_S) == b""


def test_the_handshake_without_a_network() -> None:
    one, two = Dialling(7, SECRET), Answering(lambda name: SECRET)
    assert one.receive(two.receive(one.receive(two.receive(one.hello)))) == b""
    assert one.over
    assert two.over
    assert one.number == two.number
    one, two = Dialling(7, SECRET), Answering(lambda name: b"other" * 7)
    proof = one.receive(two.receive(one.hello))
    with pytest.raises(NotAuthenticated):
        two.receive(proof)


# --- addresses


def test_an_owner_that_cannot_be_reached_dials(own: TwoPlanes) -> None:
    own.link.on_ask = lambda asked, answer: (
        structs.replace(answer, addresses=[closed_address()]) if isinstance(asked, Open) else answer
    )
    handle = own.far(give, 1, 8 * MIB)
    into = numpy.zeros(8 * MIB, numpy.uint8)
    move(own, "read", handle, into)
    assert (into == data(1, 8 * MIB)).all()
    assert any(isinstance(asked, Dial) for asked in own.link.asked)
    move(own, "write", handle, into[::-1].copy())
    assert (own.far(content, handle) == into[::-1]).all()


def test_nobody_can_reach_anybody(own: TwoPlanes, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = closed_address()
    own.link.on_ask = lambda asked, answer: (
        structs.replace(answer, addresses=[closed]) if isinstance(asked, Open) else answer
    )
    monkeypatch.setattr(own.plane.paths["tcp"].listener, "open", lambda near: [closed_address()])  # type: ignore[attr-defined]
    handle = own.far(give, 1, 100)
    with pytest.raises(
        RDMAError,
        match=f"127.0.0.1:{closed[1]} .*refused.*; nor from there to here: .*MONARCH_NB_RDMA_INTERFACE",
    ):
        own.plane.submit([Job("read", handle, memory_of(bytearray(100)))], "tcp").get(PATIENCE_S)


def closed_address() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()  # type: ignore[no-any-return]


def test_the_best_address_that_answers_is_taken(two: TwoPlanes) -> None:
    address, secret = where(two)
    found = dial([closed_address(), address], 7, secret, PATIENCE_S)
    found.sock.close()
    assert found.address == address
    with pytest.raises(Unreachable, match="it has no address"):
        dial([], 7, secret, PATIENCE_S)


def test_far_processes_are_told_other_addresses(two: TwoPlanes) -> None:
    probe = two.far(give, 0, 1)
    others = [h for h, _ in tcp_address.local_addresses(near=False)]
    if not others:
        pytest.skip("this machine has no address but the loopback's")
    found = two.plane.ask(Open(probe, 9, "another machine"))
    assert [host for host, _ in found.addresses] == others
    dial(found.addresses, 9, found.secret, PATIENCE_S).sock.close()


def test_addresses_are_restricted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tcp_address.INTERFACE_VARIABLE, "lo")
    assert ("127.0.0.1", "127.0.0.1") in tcp_address.local_addresses(near=False)
    monkeypatch.setenv(tcp_address.INTERFACE_VARIABLE, "127.0.0.1")
    assert tcp_address.local_addresses(near=False) == [("127.0.0.1", "127.0.0.1")]
    monkeypatch.setenv(tcp_address.INTERFACE_VARIABLE, "eth99")
    with pytest.raises(OSError, match="MONARCH_NB_RDMA_INTERFACE=eth99"):
        tcp_listener.Listener().open(near=True)


@pytest.mark.parametrize("text", ["0", "-1", "many", "65"])
def test_a_number_of_streams_that_cannot_be(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(tcp_address.STREAMS_VARIABLE, text)
    with pytest.raises(MeshUsageError, match="from 1 to 64"):
        tcp_address.num_streams()


# --- the checksum


def in_blocks(chunk: memoryview, seed: int) -> int:
    summed = tcp_checksum.Sum(chunk, tcp_wire.BLOCK_ROWS)
    for i in range(len(summed.blocks)):
        summed.add(i)
    return summed.total(seed)


@pytest.mark.parametrize("checksum", [tcp_checksum.summed_up, in_blocks])
def test_the_checksum_sees_what_changes(checksum: Callable[[memoryview, int], int]) -> None:
    block = data(1, 3 * tcp_wire.BLOCK_BYTES // 2 + 5)
    plain = checksum(memoryview(block), 1)
    rng = random.Random(3)
    for _ in range(200):
        at, bit = rng.randrange(len(block)), 1 << rng.randrange(8)
        block[at] ^= bit
        assert checksum(memoryview(block), 1) != plain
        block[at] ^= bit
    for a, b in ((0, 8), (0, 4096), (1460, 2920), (len(block) - 1, 7)):
        block[[a, b]] = block[[b, a]]
        assert checksum(memoryview(block), 1) != plain
        block[[a, b]] = block[[b, a]]
    assert checksum(memoryview(block), 1) == plain
    assert checksum(memoryview(block), 2) != plain
    assert checksum(memoryview(block)[:-1], 1) != plain


@pytest.mark.parametrize("nbytes", [1, 7, 8, 8063, 8064, 8065, 100_003, 1 << 20, tcp_wire.BLOCK_BYTES])
def test_a_chunk_of_one_block_has_the_same_checksum_either_way(nbytes: int) -> None:
    chunk = memoryview(data(2, nbytes))
    assert tcp_checksum.summed_up(chunk, 5) == in_blocks(chunk, 5)


# --- the notice


def test_the_cost_is_said_once(two: TwoPlanes, capsys: pytest.CaptureFixture[str]) -> None:
    verbs = SimpleNamespace(refusal=lambda handle, local: "no RDMA device (apt install rdma-core)")
    notices = notice.Notices(SimpleNamespace(paths={"verbs": verbs}))  # type: ignore[arg-type]
    near = two.far(give, 0, 100)
    there = replace(near.owner, machine="elsewhere", host="gpu-02", label="rank 4")
    big = Layout((512 * MIB,), (1,), 1)
    notices.moved(Job("write", replace(near, layout=big), memory_of(b"")), 0.5)
    far = replace(near, owner=there, layout=big)
    for _ in range(3):
        notices.moved(Job("write", far, memory_of(b"")), 0.5)
    assert capsys.readouterr().err == (
        "rdma: 512 MiB to rank 4 on gpu-02 went by tcp, 1.07 GB/s; no RDMA: no RDMA device (apt "
        "install rdma-core). More: %mesh doctor\n"
    )


# --- the end


def test_nothing_is_left_after_close() -> None:
    before = tcp_sockets()
    threads = set(threading.enumerate())
    with TwoPlanes() as own:
        handle = own.far(give, 1, 32 * MIB)
        own.link.on_ask = lambda asked, answer: (
            structs.replace(answer, addresses=[closed_address()]) if isinstance(asked, Open) else answer
        )
        move(own, "read", handle, numpy.zeros(32 * MIB, numpy.uint8))
        assert any(t.name == "monarch_nb-rdma-tcp-listener" for t in threading.enumerate())
        assert tcp_sockets() > before
    assert tcp_sockets() == before
    assert {t for t in threading.enumerate() if t.name.startswith("monarch_nb-rdma")} <= threads


def test_closing_in_the_middle_ends_the_transfer(own: TwoPlanes, between: Middleman) -> None:
    handle = own.far(give, 1, 64 * MIB)
    between.down.hold_at = 5 * MIB
    read = own.plane.submit([Job("read", handle, memory_of(numpy.zeros(64 * MIB, numpy.uint8)))], "tcp")
    assert between.down.held.wait(PATIENCE_S)
    own.plane.close()
    with pytest.raises(RDMAError, match=r"has left its mesh"):
        read.get(PATIENCE_S)


# --- GPUs


@pytest.mark.parametrize("nbytes", [1000, MIB])
def test_memory_of_a_gpu_goes_through_host_memory(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Without a GPU: memory that counts as one's is never touched by its address."""
    torch = pytest.importorskip("torch")
    from monarch_nb.rdma.paths.tcp import reach as tcp_reach

    tensor = torch.from_numpy(data(1, 2 * nbytes))
    memory = replace(memory_of(tensor), device="cuda:0", address=16)
    reach = tcp_reach.Reach()
    monkeypatch.setattr(tcp_reach, "_flat", lambda memory: tensor)
    monkeypatch.setattr(reach, "_pinned", torch.empty(2 * nbytes, dtype=torch.uint8))
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None)
    )
    request = tcp_wire.Request(tcp_wire.OP_READ, 1, 1, 0, [(5, nbytes // 2), (nbytes, nbytes // 2)])
    found = bytes(reach.read(memory, request))
    assert found == bytes(data(1, 2 * nbytes)[5 : 5 + nbytes // 2]) + bytes(
        data(1, 2 * nbytes)[nbytes : nbytes + nbytes // 2]
    )
    place = reach.place(memory, request)
    place[:] = bytes(data(2, nbytes))
    reach.put(memory, request, place)
    assert bytes(reach.read(memory, request)) == bytes(data(2, nbytes))
