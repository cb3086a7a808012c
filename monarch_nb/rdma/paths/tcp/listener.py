"""Listens for tcp connections from the first request on, and rejects processes that don't know a secret
(`handshake.py`).
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable

from monarch_nb.rdma.paths.tcp.address import Address, local_addresses, no_address
from monarch_nb.rdma.paths.tcp.handshake import SECRET_BYTES, Answering, Connection, PendingConnection

HANDSHAKE_S = 3.0
"""A connection whose handshake takes longer is cut."""
MAX_PENDING = 64
"""Maximum number of unauthenticated connections; one more, and the oldest is cut."""
MAX_SECRETS = 4096
FULL_S = 0.05

OnConnection = Callable[[Connection], None]


class Listener:
    """The listener for tcp connections, opened at first need, which accepts processes that know a secret. It
    has one thread for any number of connections.
    """

    def __init__(self) -> None:
        self._expected: dict[int, tuple[bytes, OnConnection]] = {}
        self._listening: dict[bool, list[Address]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake = -1
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._pending: dict[int, PendingConnection] = {}

    def expect(self, name: int, on_connection: OnConnection) -> bytes:
        """Accept connections that authenticate as `name`, by the secret that this returns; `on_connection`
        gets each of them.
        """
        secret = secrets.token_bytes(SECRET_BYTES)
        with self._lock:
            self._expected.pop(name, None)
            while len(self._expected) >= MAX_SECRETS:
                self._expected.pop(next(iter(self._expected)))
            self._expected[name] = (secret, on_connection)
        return secret

    def _secret_of(self, name: int) -> bytes:
        found = self._expected.get(name)
        return found[0] if found else secrets.token_bytes(SECRET_BYTES)

    def open(self, near: bool) -> list[Address]:
        """Listen for processes of this machine (`near`) or of others; return the addresses, the best first.

        Raises:
            OSError: if no address can be listened on.
        """
        with self._lock:
            if self._closed:
                raise OSError("this process has left its mesh")
            if near not in self._listening:
                self._listening[near] = self._listen(near)
            return self._listening[near]

    def _listen(self, near: bool) -> list[Address]:
        found: list[Address] = []
        ports: dict[str, int] = {}
        problem: OSError | None = None
        for host, bind_to in local_addresses(near):
            try:
                if bind_to not in ports:
                    ports[bind_to] = self._bind(bind_to)
            except OSError as error:
                problem = error
                continue
            found.append((host, ports[bind_to]))
        if not found:
            raise problem or OSError(no_address())
        return found

    def _bind(self, host: str) -> int:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            if ":" in host:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, 0))
            sock.listen(64)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        self._start()
        self._selector.register(sock, selectors.EVENT_READ, "listens")
        return int(sock.getsockname()[1])

    def _start(self) -> None:
        if self._thread is None:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._selector.register(self._wake, selectors.EVENT_READ, "ends")
            self._thread = threading.Thread(
                target=self._run, name="monarch_nb-rdma-tcp-listener", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(HANDSHAKE_S / 2 if self._pending else None):
                if key.data == "listens":
                    self._accept(key.fileobj)  # type: ignore[arg-type]
                elif (
                    key.data == "pending" and key.fd in self._pending
                ):  # it may have been cut at this moment, to make room
                    self._proceed(self._pending[key.fd])
            now = time.monotonic()
            for pending in [p for p in self._pending.values() if now - p.since > HANDSHAKE_S]:
                self._reject(pending)

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is free: the socket stays readable
            time.sleep(FULL_S)
            return
        if len(self._pending) >= MAX_PENDING:
            self._reject(next(iter(self._pending.values())))
        sock.setblocking(False)
        self._pending[sock.fileno()] = PendingConnection(sock, Answering(self._secret_of))
        self._selector.register(sock, selectors.EVENT_READ, "pending")

    def _proceed(self, pending: PendingConnection) -> None:
        try:
            if not pending.proceed():
                return
        except BlockingIOError:
            return
        except OSError:
            self._reject(pending)
            return
        self._remove(pending)
        handshake = pending.handshake
        assert isinstance(handshake, Answering)
        pending.sock.setblocking(True)
        with self._lock:
            found = self._expected.get(handshake.name)
        if found is None or self._closed:
            pending.sock.close()
        else:
            found[1](Connection(pending.sock, handshake.number))

    def _remove(self, pending: PendingConnection) -> None:
        self._selector.unregister(pending.sock)
        del self._pending[pending.sock.fileno()]

    def _reject(self, pending: PendingConnection) -> None:
        self._remove(pending)
        pending.sock.close()

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        if thread is not None:
            os.eventfd_write(self._wake, 1)
            thread.join()
            os.close(self._wake)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
