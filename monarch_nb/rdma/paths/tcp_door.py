"""How two processes get a connection that both trust: addresses, a door at which strangers are turned away, and dialling.

They have a secret of 32 bytes in common, which came over the mesh's control plane. Each proves by an HMAC-SHA256 of both sides' fresh random
numbers that it has it; who listens says nothing but a random number before the other has.

    dials  ->  magic, name, random      <-  random
           ->  proof                    <-  proof
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from monarch_nb.rdma.paths.tcp_address import Address, local_addresses, no_address
from monarch_nb.rdma.paths.tcp_wire import Broken

NONCE_BYTES = PROOF_BYTES = SECRET_BYTES = 32
GREETING_S = 3.0
"""A stranger who says nothing is cut after so long."""
MAX_STRANGERS = 64
"""So many connections may be unproven; one more, and the oldest is cut."""
MAX_SECRETS = 4096
FULL_S = 0.05
TICK_S = 0.1
BETTER_S = 0.05
"""When an address answers, better ones have so much longer."""

_HELLO = struct.Struct(f"<8sQ{NONCE_BYTES}s")
_MAGIC = b"mnb-tcp1"


class Stranger(Broken):
    """Who is at the other end doesn't know the secret."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection on which both sides have proven who they are.

    Attributes:
        sock: blocking.
        number: both sides call it so.
        address: at which it was reached, if it was dialled.
        round_trip_s: what an answer took, if it was dialled.
    """

    sock: socket.socket
    number: int
    address: Address | None = None
    round_trip_s: float = 0.0


Taker = Callable[[Connection], None]


class Handshake(Protocol):
    """One side of it, without any socket: `take` is given `wanted` bytes and returns what to send."""

    wanted: int
    over: bool
    number: int

    def take(self, data: bytes) -> bytes:
        """Go on.

        Raises:
            Stranger: if the other side doesn't know the secret.
        """


class Dialling:
    """The side that dials.

    >>> one, two = Dialling(7, b"s" * 32), Answering(lambda name: b"s" * 32)
    >>> two.take(one.take(two.take(one.hello)))  == b"", one.over, two.over
    (False, False, True)
    """

    def __init__(self, name: int, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._theirs = b""
        self.hello = _HELLO.pack(_MAGIC, name, self._nonce)
        self.number = _number(self._nonce)
        self.wanted = NONCE_BYTES
        self.over = False

    def take(self, data: bytes) -> bytes:
        """See `Handshake`."""
        if not self._theirs:
            self._theirs = data
            return _proof(self._secret, b"dials", self._nonce, self._theirs)
        if not hmac.compare_digest(data, _proof(self._secret, b"answers", self._nonce, self._theirs)):
            raise Stranger("who answers doesn't know the secret")
        self.over = True
        return b""


class Answering:
    """The side that listens; `secret_of` returns the secret for a name, or one that nobody knows."""

    def __init__(self, secret_of: Callable[[int], bytes]) -> None:
        self._secret_of = secret_of
        self._secret = self._theirs = b""
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.name = self.number = 0
        self.wanted = _HELLO.size
        self.over = False

    def take(self, data: bytes) -> bytes:
        """See `Handshake`."""
        if not self._theirs:
            magic, self.name, self._theirs = _HELLO.unpack(data)
            if magic != _MAGIC:
                raise Stranger("this is another protocol")
            self._secret = self._secret_of(self.name)
            self.number = _number(self._theirs)
            self.wanted = PROOF_BYTES
            return self._nonce
        if not hmac.compare_digest(data, _proof(self._secret, b"dials", self._theirs, self._nonce)):
            raise Stranger("who dials doesn't know the secret")
        self.over = True
        return _proof(self._secret, b"answers", self._theirs, self._nonce)


def _number(nonce: bytes) -> int:
    return int.from_bytes(nonce[:8], "little")


def _proof(secret: bytes, role: bytes, dialler: bytes, listener: bytes) -> bytes:
    return hmac.new(secret, _MAGIC + role + dialler + listener, hashlib.sha256).digest()


class _Guest:
    """A connection whose handshake is under way. The socket doesn't block."""

    def __init__(self, sock: socket.socket, handshake: Handshake) -> None:
        self.sock = sock
        self.handshake = handshake
        self.since = time.monotonic()
        self._got = b""

    def proceed(self) -> bool:
        """Read what has come; return whether both have proven themselves.

        Raises:
            OSError: if not, and never will.
        """
        data = self.sock.recv(self.handshake.wanted - len(self._got))
        if not data:
            raise Broken("the other side has closed the connection")
        self._got += data
        if len(self._got) == self.handshake.wanted:
            data, self._got = self._got, b""
            self.sock.send(self.handshake.take(data), socket.MSG_NOSIGNAL)  # some bytes: they fit
        return self.handshake.over


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
        self._guests: dict[int, _Guest] = {}

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
        self._guests[sock.fileno()] = _Guest(sock, Answering(self._secret_of))
        self._selector.register(sock, selectors.EVENT_READ, "guest")

    def _hear(self, guest: _Guest) -> None:
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

    def _take_leave(self, guest: _Guest) -> None:
        self._selector.unregister(guest.sock)
        del self._guests[guest.sock.fileno()]

    def _turn_away(self, guest: _Guest) -> None:
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


# --- dialling


class Unreachable(OSError):
    """None of the addresses led to who was meant; the text says for each why."""


def dial(
    addresses: Sequence[Address], name: int, secret: bytes, timeout_s: float, is_off: Callable[[], bool] = lambda: False
) -> Connection:
    """Connect to one of some addresses, all tried at once; the first in the list that answers in time.

    Args:
        addresses: the best first.
        name, secret: see `Door.expect`.
        timeout_s: for all of them.
        is_off: whether nobody wants it any more.

    Raises:
        Unreachable: if none leads to one who knows the secret.
    """
    call = _Call(addresses, name, secret)
    try:
        return call.run(time.monotonic() + timeout_s, is_off)
    finally:
        call.close()


class _Call:
    """One attempt to get through."""

    def __init__(self, addresses: Sequence[Address], name: int, secret: bytes) -> None:
        self._addresses = list(addresses)
        self._selector = selectors.DefaultSelector()
        self._why: dict[Address, str] = {}
        self._proven: dict[Address, Connection] = {}
        for address in self._addresses:
            self._begin(address, Dialling(name, secret))

    def _begin(self, address: Address, handshake: Dialling) -> None:
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            with suppress(BlockingIOError):
                sock.connect(address)
        except OSError as error:
            sock.close()
            self._why[address] = _reason(error)
            return
        self._selector.register(sock, selectors.EVENT_WRITE, (address, _Guest(sock, handshake)))

    def run(self, deadline: float, is_off: Callable[[], bool]) -> Connection:
        while self._selector.get_map() and not self._is_decided() and not is_off():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for key, _ in self._selector.select(min(left, TICK_S)):
                address, guest = key.data
                self._proceed(address, guest)
            if self._proven:
                deadline = min(deadline, time.monotonic() + BETTER_S)
        for address in self._addresses:
            if address in self._proven:
                return self._proven.pop(address)
        tried = ", ".join(f"{address_text(a)} ({self._why.get(a, 'no answer')})" for a in self._addresses)
        raise Unreachable(tried or "it has no address")

    def _is_decided(self) -> bool:
        """Whether no address is left that would be better than what we have."""
        left = [a for a in self._addresses if a not in self._why]
        return bool(left) and left[0] in self._proven

    def _proceed(self, address: Address, guest: _Guest) -> None:
        handshake = guest.handshake
        assert isinstance(handshake, Dialling)
        try:
            if self._selector.get_key(guest.sock).events == selectors.EVENT_WRITE:
                problem = guest.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if problem:
                    raise OSError(problem, os.strerror(problem))
                guest.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                guest.since = time.monotonic()
                guest.sock.send(handshake.hello)
                self._selector.modify(guest.sock, selectors.EVENT_READ, (address, guest))
                return
            if not guest.proceed():
                return
        except BlockingIOError:
            return
        except OSError as error:
            self._selector.unregister(guest.sock)
            guest.sock.close()
            self._why[address] = _reason(error)
            return
        self._selector.unregister(guest.sock)
        guest.sock.setblocking(True)
        took = (time.monotonic() - guest.since) / 2  # two there and back
        self._proven[address] = Connection(guest.sock, handshake.number, address, took)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data[1].sock.close()
        self._selector.close()
        for connection in self._proven.values():
            connection.sock.close()


def _reason(error: OSError) -> str:
    return (os.strerror(error.errno) if error.errno else str(error)).lower()


def address_text(address: Address) -> str:
    """Return an address for people.

    >>> address_text(("::1", 80))
    '[::1]:80'
    """
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
