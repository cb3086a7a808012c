"""Strangers at the port for other hosts: they can't have more than a little memory taken, nor keep hosts
out.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from waiting import wait_until

from monarch_nb._client import session as sessions
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.ranks import Tickets
from monarch_nb._wire.pieces import FRAME_BYTES, cut, join
from monarch_nb._wire.strangers import HANDSHAKE_S, MAX_STRANGERS
from monarch_nb.actor import attach_to_workers
from monarch_nb.actor.workers import key_file
from monarch_nb.job import ProcessJob

T = 60
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""How ZMTP begins: a peer that would go on with a handshake."""
LONG = b"\x06"
"""A command whose length has eight bytes."""
MANY = 300
MEBIBYTE = 1 << 20


def memory_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def num_open(connections: list[socket.socket]) -> int:
    """Count the connections that the other side hasn't ended."""
    return sum(not _has_ended(each) for each in connections)


def _has_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)  # with a time-out of Python's, MSG_DONTWAIT would wait all the same
    try:
        while connection.recv(4096):
            pass  # the other side's greeting
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def dial(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))


def send_huge(port: int, greeting: bytes, num_bytes: int) -> int:
    """Announce a gigabyte and send what is taken of it; return how much."""
    sent = 0
    with suppress(OSError), dial(port) as stranger:
        stranger.sendall(greeting)
        stranger.sendall(LONG + struct.pack(">Q", 1 << 30))
        while sent < num_bytes:
            sent += stranger.send(bytes(MEBIBYTE))
    return sent


@pytest.fixture(scope="module")
def job() -> Iterator[ProcessJob]:
    started = ProcessJob({"hosts": 1})
    started.state().hosts.initialized.get(T)
    yield started
    started.kill()


@pytest.fixture
def controller(job: ProcessJob) -> tuple[int, int]:
    """The controller's pid, and its port."""
    session = sessions.current()
    ticket = session.request(Tickets(1))[0]
    return session.request(Status()).pid, int(ticket.controller.rpartition(":")[2])


def test_a_huge_frame_of_a_stranger_is_not_read(controller: tuple[int, int]) -> None:
    pid, port = controller
    before = memory_bytes(pid)
    for greeting in (GREETING, b"", GREETING + b"\x04\x19\x05READY" + bytes(19)):
        threads = [threading.Thread(target=send_huge, args=(port, greeting, 64 * MEBIBYTE)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert memory_bytes(pid) - before < 32 * MEBIBYTE


def test_many_who_never_speak_keep_nobody_out(controller: tuple[int, int], job: ProcessJob) -> None:
    pid, port = controller
    before = memory_bytes(pid)
    strangers = [dial(port) for _ in range(MANY)]
    other = ProcessJob({"others": 1})
    try:
        for i, stranger in enumerate(strangers):
            with suppress(OSError):
                stranger.sendall(GREETING[: i % len(GREETING)])
        procs = other.state().others.spawn_procs({"gpus": 1})
        assert list(procs.execute(os.getpid).get(T).values())
        wait_until(lambda: num_open(strangers) <= MAX_STRANGERS, "those that are too many are cut")
        assert memory_bytes(pid) - before < 32 * MEBIBYTE
    finally:
        for stranger in strangers:
            stranger.close()
        other.kill()


def test_those_of_one_address_keep_nobody_of_another_out(controller: tuple[int, int]) -> None:
    """Who came first, from elsewhere, isn't cut for the many who come after."""
    assert any(_first_stays(controller[1]) for _ in range(5))


def _first_stays(port: int) -> bool:
    """Say whether somebody is still connected when others have been cut; on a machine that is so busy that
    the time for a handshake is up by then, that says nothing.
    """
    began = time.monotonic()
    first = dial(port)
    strangers = [dial(port, "127.0.0.2") for _ in range(MAX_STRANGERS + 16)]
    try:
        wait_until(lambda: num_open(strangers) < MAX_STRANGERS, "those that are too many are cut")
        stays = not _has_ended(first)
        assert stays or time.monotonic() - began > HANDSHAKE_S
        return stays and num_open(strangers) > 0
    finally:
        for each in (first, *strangers):
            each.close()


def test_hosts_may_say_as_much_as_they_like(job: ProcessJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle of megabytes travels in the message itself, there and back."""
    procs = job.state().hosts.spawn_procs({"gpus": 1}, env={"MONARCH_NB_RDMA_ENCRYPTED": "1"})
    numbers = list(range(1_000_000))
    assert list(procs.execute(sum, numbers).get(T).values()) == [sum(numbers)]
    assert list(procs.execute(list, range(1_000_000)).get(T).values()) == [numbers]
    assert list(procs.execute(bytearray, 20 * MEBIBYTE).get(T).values()) == [bytearray(20 * MEBIBYTE)]
    procs.stop().get(T)


def test_a_worker_is_not_to_be_filled_either(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    keys = str(tmp_path / "keys")
    key_file(keys)
    code = (
        "from monarch_nb.actor import run_worker_loop_forever; "
        f"run_worker_loop_forever('tcp://127.0.0.1:{port}', {keys!r})"
    )
    worker = subprocess.Popen([sys.executable, "-c", code])
    try:
        hosts = attach_to_workers(keys, [f"tcp://127.0.0.1:{port}"])
        hosts.initialized.get(T)
        before = memory_bytes(worker.pid)
        send_huge(port, GREETING, 64 * MEBIBYTE)
        strangers = [dial(port) for _ in range(MANY)]
        again = attach_to_workers(keys, [f"tcp://127.0.0.1:{port}"])
        again.initialized.get(T)
        wait_until(lambda: num_open(strangers) <= MAX_STRANGERS, "those that are too many are cut")
        assert memory_bytes(worker.pid) - before < 32 * MEBIBYTE
        for stranger in strangers:
            stranger.close()
        for each in (hosts, again):
            each.shutdown()
    finally:
        worker.terminate()
        worker.wait(10)


def test_long_frames_are_cut_and_joined() -> None:
    frames = [b"\x01" * 10, b"a" * (3 * FRAME_BYTES), b"", b"b"]
    parts = cut(frames)
    assert max(map(len, parts)) < FRAME_BYTES
    assert [bytes(f) for f in join(parts)] == frames
    short = [b"\x01head", b"body"]
    assert cut(short) is short
    assert join(short) is short
