"""Dials all addresses of a process at once, until one reaches the intended process."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from monarch_nb.rdma.paths.tcp.address import Address
from monarch_nb.rdma.paths.tcp.handshake import Connection, Dialling, PendingConnection

BETTER_S = 0.05
"""After an address has answered, better ones have this much more time."""
TICK_S = 0.1


class Unreachable(OSError):
    """The error raised when none of the addresses led to the intended process; its text gives the reason for
    each.
    """


def dial(
    addresses: Sequence[Address],
    name: int,
    secret: bytes,
    timeout_s: float,
    is_off: Callable[[], bool] = lambda: False,
) -> Connection:
    """Connect to one of several addresses. All are tried at once; the first in the list that answers in time
    is taken.

    Args:
        addresses: the best first.
        name, secret: see `Listener.expect`.
        timeout_s: limit for all addresses together.
        is_off: returns whether to give up.

    Raises:
        Unreachable: if no address leads to a process that knows the secret.
    """
    call = _Call(addresses, name, secret)
    try:
        return call.run(time.monotonic() + timeout_s, is_off)
    finally:
        call.close()


class _Call:
    """One attempt to connect."""

    def __init__(self, addresses: Sequence[Address], name: int, secret: bytes) -> None:
        self._addresses = list(addresses)
        self._selector = selectors.DefaultSelector()
        self._why: dict[Address, str] = {}
        self._proven: dict[Address, Connection] = {}
        for address in self._addresses:
            self._begin_dialling(address, Dialling(name, secret))

    def _begin_dialling(self, address: Address, handshake: Dialling) -> None:
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            with suppress(BlockingIOError):
                sock.connect(address)
        except OSError as error:
            sock.close()
            self._why[address] = _reason(error)
            return
        self._selector.register(sock, selectors.EVENT_WRITE, (address, PendingConnection(sock, handshake)))

    def run(self, deadline: float, is_off: Callable[[], bool]) -> Connection:
        while self._selector.get_map() and not self._is_decided() and not is_off():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for key, _ in self._selector.select(min(left, TICK_S)):
                address, pending = key.data
                self._proceed(address, pending)
            if self._proven:
                deadline = min(deadline, time.monotonic() + BETTER_S)
        for address in self._addresses:
            if address in self._proven:
                return self._proven.pop(address)
        tried = ", ".join(f"{address_text(a)} ({self._why.get(a, 'no answer')})" for a in self._addresses)
        raise Unreachable(tried or "it has no address")

    def _is_decided(self) -> bool:
        """Return whether no better connection is possible: the best address that hasn't failed is
        connected.
        """
        left = [a for a in self._addresses if a not in self._why]
        return bool(left) and left[0] in self._proven

    def _proceed(self, address: Address, pending: PendingConnection) -> None:
        handshake = pending.handshake
        assert isinstance(handshake, Dialling)
        try:
            if self._selector.get_key(pending.sock).events == selectors.EVENT_WRITE:
                problem = pending.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if problem:
                    raise OSError(problem, os.strerror(problem))
                pending.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pending.since = time.monotonic()
                pending.sock.send(handshake.hello)
                self._selector.modify(pending.sock, selectors.EVENT_READ, (address, pending))
                return
            if not pending.proceed():
                return
        except BlockingIOError:
            return
        except OSError as error:
            self._selector.unregister(pending.sock)
            pending.sock.close()
            self._why[address] = _reason(error)
            return
        self._selector.unregister(pending.sock)
        pending.sock.setblocking(True)
        took = (time.monotonic() - pending.since) / 2  # two round trips
        self._proven[address] = Connection(pending.sock, handshake.number, address, took)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data[1].sock.close()
        self._selector.close()
        for connection in self._proven.values():
            connection.sock.close()


def _reason(error: OSError) -> str:
    return (os.strerror(error.errno) if error.errno else str(error)).lower()


def address_text(address: Address) -> str:
    """Return an address as text.

    >>> address_text(("::1", 80))
    '[::1]:80'
    """
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
