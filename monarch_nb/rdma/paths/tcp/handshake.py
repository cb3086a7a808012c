"""Lets two processes with a common secret prove it to each other, on any connection.

The secret of 32 bytes came over the mesh's control plane. Each side shows by an HMAC-SHA256 of both sides'
fresh random numbers that it has it; who listens says nothing but a random number before the other has.

    dials  ->  magic, name, random      <-  random
           ->  proof                    <-  proof
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from monarch_nb.rdma.paths.tcp.address import Address
from monarch_nb.rdma.paths.tcp.wire import Broken

NONCE_BYTES = PROOF_BYTES = SECRET_BYTES = 32

_HELLO = struct.Struct(f"<8sQ{NONCE_BYTES}s")
_MAGIC = b"mnb-tcp1"


class NotAuthenticated(Broken):
    """The error of a connection whose other end doesn't know the secret."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection on which both sides have proven who they are.

    Attributes:
        sock: blocking.
        number: number by which both sides refer to it.
        address: at which it was reached, if it was dialled.
        round_trip_s: what an answer took, if it was dialled.
    """

    sock: socket.socket
    number: int
    address: Address | None = None
    round_trip_s: float = 0.0


class Handshake(Protocol):
    """One side of a handshake, without any socket: `receive` takes `wanted` bytes and returns the bytes to
    send.
    """

    wanted: int
    over: bool
    number: int

    def receive(self, data: bytes) -> bytes:
        """Process received bytes, and return the bytes to send.

        Raises:
            Stranger: if the other side doesn't know the secret.
        """


class Dialling:
    """The dialling side of a handshake.

    >>> one, two = Dialling(7, b"s" * 32), Answering(lambda name: b"s" * 32)
    >>> two.receive(one.receive(two.receive(one.hello)))  == b"", one.over, two.over
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

    def receive(self, data: bytes) -> bytes:
        """See `Handshake`."""
        if not self._theirs:
            self._theirs = data
            return _proof(self._secret, b"dials", self._nonce, self._theirs)
        if not hmac.compare_digest(data, _proof(self._secret, b"answers", self._nonce, self._theirs)):
            raise NotAuthenticated("the process that answered doesn't know the secret")
        self.over = True
        return b""


class Answering:
    """The listening side of a handshake; `secret_of` returns the secret for a name, or a random one."""

    def __init__(self, secret_of: Callable[[int], bytes]) -> None:
        self._secret_of = secret_of
        self._secret = self._theirs = b""
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.name = self.number = 0
        self.wanted = _HELLO.size
        self.over = False

    def receive(self, data: bytes) -> bytes:
        """See `Handshake`."""
        if not self._theirs:
            magic, self.name, self._theirs = _HELLO.unpack(data)
            if magic != _MAGIC:
                raise NotAuthenticated("the other side uses another protocol")
            self._secret = self._secret_of(self.name)
            self.number = _number(self._theirs)
            self.wanted = PROOF_BYTES
            return self._nonce
        if not hmac.compare_digest(data, _proof(self._secret, b"dials", self._theirs, self._nonce)):
            raise NotAuthenticated("the process that connected doesn't know the secret")
        self.over = True
        return _proof(self._secret, b"answers", self._theirs, self._nonce)


def _number(nonce: bytes) -> int:
    return int.from_bytes(nonce[:8], "little")


def _proof(secret: bytes, role: bytes, dialler: bytes, listener: bytes) -> bytes:
    return hmac.new(secret, _MAGIC + role + dialler + listener, hashlib.sha256).digest()


class PendingConnection:
    """A connection whose handshake is under way. The socket doesn't block."""

    def __init__(self, sock: socket.socket, handshake: Handshake) -> None:
        self.sock = sock
        self.handshake = handshake
        self.since = time.monotonic()
        self._got = b""

    def proceed(self) -> bool:
        """Read the bytes that have arrived; return whether both sides have authenticated.

        Raises:
            OSError: if the handshake has failed.
        """
        data = self.sock.recv(self.handshake.wanted - len(self._got))
        if not data:
            raise Broken("the other side has closed the connection")
        self._got += data
        if len(self._got) == self.handshake.wanted:
            data, self._got = self._got, b""
            # a few bytes: they fit into the socket's buffer
            self.sock.send(self.handshake.receive(data), socket.MSG_NOSIGNAL)
        return self.handshake.over
