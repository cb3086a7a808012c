"""CURVE keys, and the allow-list that a controller checks every tcp connection against.

ZeroMQ asks an in-process REP socket (the ZAP protocol, RFC 27) for each new connection. `Gatekeeper` answers
it from the host process' own loop, so no thread is needed, and an unknown key never gets a byte through.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import zmq
from zmq.utils import z85

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_REQUEST_FRAMES = 7


class KeyPair(NamedTuple):
    """A CURVE key pair in Z85 text."""

    public: str
    secret: str

    @classmethod
    def new(cls) -> KeyPair:
        """Draw a fresh pair."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


def key_of(frame: zmq.Frame) -> str:
    """Return the public key of the peer that has sent a frame, as the `Gatekeeper` has let it in; empty if
    there was none.
    """
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


class Gatekeeper:
    """The ZAP authenticator: it admits only public keys in `allowed`. Owned by the host process' loop
    thread.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.bind(ZAP_ENDPOINT)
        self.allowed: set[str] = set()
        self.refused = 0

    def answer(self) -> None:
        """Answer one request; call it when the socket is readable."""
        frames: list[Any] = self.socket.recv_multipart()
        request = frames[1] if len(frames) > 1 else b""
        known = len(frames) >= _REQUEST_FRAMES and frames[5] == b"CURVE" and self._known(frames[6])
        if not known:
            self.refused += 1
        code, text = (b"200", b"OK") if known else (b"400", b"unknown key")
        # ZeroMQ adds this to each message from the connection (`key_of`): the holder of a key can't
        # impersonate another.
        user = z85.encode(frames[6]) if known else b""
        self.socket.send_multipart([b"1.0", request, code, text, user, b""])

    def _known(self, key: bytes) -> bool:
        return z85.encode(key).decode() in self.allowed

    def close(self) -> None:
        """Close the socket."""
        self.socket.close(0)
