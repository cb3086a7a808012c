"""A process' sockets by themselves."""

from __future__ import annotations

import struct
import sys
import threading
from pathlib import Path

from waiting import wait_until

from monarch_nb._runtime.inbox import Inbox
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address
from monarch_nb._wire.message import Message
from monarch_nb.exceptions import TransportClosed

PATIENCE_S = 60.0
NUM_TRIES = 20


def _close(transport: Transport, together: threading.Barrier, errors: list[Exception]) -> None:
    together.wait(PATIENCE_S)
    try:
        transport.close()
    except Exception as error:
        errors.append(error)


def test_two_may_close_at_once(tmp_path: Path) -> None:
    """Whoever stops a mesh, and whoever hears of its end: ZeroMQ never comes back from ending a context
    twice.
    """
    for _ in range(NUM_TRIES):
        transport = Transport(address.new_client_id(), str(tmp_path))
        transport.start()
        together = threading.Barrier(2)
        errors: list[Exception] = []

        threads = [
            threading.Thread(target=_close, args=(transport, together, errors), daemon=True) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert transport.closed and not errors


def test_who_comes_second_does_not_wait_for_who_closes(tmp_path: Path) -> None:
    """A callback of the end may close, too: by itself, or in a thread that it waits for."""
    transport = Transport(address.new_client_id(), str(tmp_path))
    transport.start()
    returned: list[bool] = []

    def on_close() -> None:
        transport.close()
        other = threading.Thread(target=transport.close, daemon=True)
        other.start()
        other.join(PATIENCE_S)
        returned.append(not other.is_alive())

    transport.on_close.append(on_close)
    transport.close()
    assert transport.closed and returned == [True]


def test_closing_lets_all_go_that_wait_for_mail(tmp_path: Path) -> None:
    """One of them reads the socket, the others are parked."""
    for _ in range(NUM_TRIES):
        transport = Transport(address.new_client_id(), str(tmp_path))
        transport.start()
        told: list[TransportClosed] = []
        threads = [threading.Thread(target=_wait, args=(transport, told), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        reader = transport.reader
        wait_until(
            lambda reader=reader: reader._reading and len(reader._followers) == 2, "a leader and two others"
        )
        transport.close()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert len(told) == 3


def _wait(transport: Transport, told: list[TransportClosed]) -> None:
    inbox: Inbox[Message] = Inbox()
    try:
        inbox.take_message(transport)
    except TransportClosed as error:
        told.append(error)


def test_segments_dropped_by_other_threads_meanwhile_are_told_once_each(tmp_path: Path) -> None:
    """A value is dropped wherever its last reference is, while another thread answers."""
    transport = Transport(address.new_client_id(), str(tmp_path))
    owner, other, num = 7, 8, 30_000
    dropped = threading.Event()

    def drop() -> None:
        for number in range(num):
            transport._releases.append((owner if number % 3 else other, number))
        dropped.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=drop, daemon=True)
    told: list[int] = []
    try:
        thread.start()
        while not dropped.is_set():
            told += [inode for (inode,) in struct.iter_unpack("<Q", transport.releases_for(owner))]
    finally:
        sys.setswitchinterval(before)
    thread.join(PATIENCE_S)
    told += [inode for (inode,) in struct.iter_unpack("<Q", transport.releases_for(owner))]
    assert sorted(told) == [number for number in range(num) if number % 3]
    assert [release for release in transport._releases if release[0] == owner] == []
    assert len(transport._releases) == num // 3
    transport._releases.clear()
    transport.close()
