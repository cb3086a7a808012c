"""Events of a socket's connections, as ZeroMQ tells them. pyzmq reads them, too, but in a module that imports
asyncio and ssl: that's a tenth of what the start of a host process costs.
"""

from __future__ import annotations

import struct

import zmq

_LAYOUT = struct.Struct("=Hi")


def read_event(monitor: zmq.Socket[bytes]) -> tuple[int, int]:
    """Return the event that a monitor socket has got, one of `zmq.EVENT_...`, and its value: with most, the
    descriptor of the connection.
    """
    event, value = _LAYOUT.unpack(monitor.recv_multipart()[0])
    return event, value
