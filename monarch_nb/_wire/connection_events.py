"""Events of a socket's connections, as ZeroMQ tells them. pyzmq reads them, too, but in a module that imports
asyncio and ssl: that's a tenth of what the start of a host process costs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import zmq

_LAYOUT = struct.Struct("=Hi")


def send_unless_refused(socket: zmq.Socket[bytes], frames: Sequence[Any], *, copy: bool = True) -> None:
    """Send a message by a socket that has dialled one peer; drop it if that peer has refused the socket's
    key: ZeroMQ gives such a connection up, and would wait for ever to send anything.
    """
    with suppress(zmq.Again):
        socket.send_multipart(frames, zmq.DONTWAIT, copy=copy)


def read_event(monitor: zmq.Socket[bytes]) -> tuple[int, int]:
    """Return the event that a monitor socket has got, one of `zmq.EVENT_...`, and its value: with most, the
    descriptor of the connection.
    """
    event, value = _LAYOUT.unpack(monitor.recv_multipart()[0])
    return event, value
