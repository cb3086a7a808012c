"""The door of a process: it listens, lazily, and turns away whoever doesn't know a secret (`tcp_handshake.py`)."""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable

from monarch_nb.rdma.paths.tcp_address import Address, local_addresses, no_address
from monarch_nb.rdma.paths.tcp_handshake import SECRET_BYTES, Answering, Connection, Guest

GREETING_S = 3.0
"""A stranger who says nothing is cut after so long."""
MAX_STRANGERS = 64
"""So many connections may be unproven; one more, and the oldest is cut."""
MAX_SECRETS = 4096
FULL_S = 0.05

Taker = Callable[[Connection], None]


class Door:
    """Listens, lazily, and lets those in who know a secret. One thread, however many come."""

    def __init__(self) -> None:
        self._expected: dict[int, tuple[bytes, Taker]] = {}
        self._listening: dict[bool, list[Address]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake = -1
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._guests: dict[int, Guest] = {}

    def expect(self, name: int, take: Taker) -> bytes:
        """Let in who proves to be `name`, by a secret that is returned; `take` gets each of its connections."""
        secret = secrets.token_bytes(SECRET_BYTES)
        with self._lock:
            self._expected.pop(name, None)
            while len(self._expected) >= MAX_SECRETS:
                self._expected.pop(next(iter(self._expected)))
            self._expected[name] = (secret, take)
        return secret

    def _secret_of(self, name: int) -> bytes:
        found = self._expected.get(name)
        return found[0] if found else secrets.token_bytes(SECRET_BYTES)

    def open(self, near: bool) -> list[Address]:
        """Listen for processes of this machine, or of others; return where, the best first.

        Raises:
            OSError: if nowhere.
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
            self._thread = threading.Thread(target=self._run, name="monarch_nb-rdma-tcp-door", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(GREETING_S / 2 if self._guests else None):
                if key.data == "listens":
                    self._let_in(key.fileobj)  # type: ignore[arg-type]
                elif key.data == "guest" and key.fd in self._guests:  # it may have been cut just now, for another
                    self._hear(self._guests[key.fd])
            now = time.monotonic()
            for guest in [g for g in self._guests.values() if now - g.since > GREETING_S]:
                self._turn_away(guest)

    def _let_in(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptors are left: it stays readable
            time.sleep(FULL_S)
            return
        if len(self._guests) >= MAX_STRANGERS:
            self._turn_away(next(iter(self._guests.values())))
        sock.setblocking(False)
        self._guests[sock.fileno()] = Guest(sock, Answering(self._secret_of))
        self._selector.register(sock, selectors.EVENT_READ, "guest")

    def _hear(self, guest: Guest) -> None:
        try:
            if not guest.proceed():
                return
        except BlockingIOError:
            return
        except OSError:
            self._turn_away(guest)
            return
        self._take_leave(guest)
        handshake = guest.handshake
        assert isinstance(handshake, Answering)
        guest.sock.setblocking(True)
        with self._lock:
            found = self._expected.get(handshake.name)
        if found is None or self._closed:
            guest.sock.close()
        else:
            found[1](Connection(guest.sock, handshake.number))

    def _take_leave(self, guest: Guest) -> None:
        self._selector.unregister(guest.sock)
        del self._guests[guest.sock.fileno()]

    def _turn_away(self, guest: Guest) -> None:
        self._take_leave(guest)
        guest.sock.close()

    def close(self) -> None:
        """Listen no more."""
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
