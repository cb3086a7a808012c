"""Stands between host processes and their controller, and counts the messages that hosts send.

They're encrypted; but their number and their lengths can be seen (ZMTP 3: rfc.zeromq.org/spec/23).
"""

from __future__ import annotations

import socket
import threading

_GREETING_BYTES = 64
_LONG, _COMMAND = 2, 4


class FrameCounter:
    """Counts the messages in the bytes of one connection."""

    def __init__(self) -> None:
        self._data = b""
        self._skip = _GREETING_BYTES

    def feed(self, data: bytes) -> int:
        """Return how many messages begin in what has come by now; the handshake's commands are none."""
        found, data = 0, self._data + data
        while True:
            skipped = min(self._skip, len(data))
            data, self._skip = data[skipped:], self._skip - skipped
            header = 9 if data and data[0] & _LONG else 2
            if self._skip or len(data) < header:
                self._data = data
                return found
            found += not data[0] & _COMMAND
            self._skip = header + int.from_bytes(data[1:header], "big")


class CountingProxy:
    """Listens in the place of a controller, and passes on what comes.

    Attributes:
        address: what hosts are to dial.
        num_messages: how many they have sent.
    """

    def __init__(self, controller: str) -> None:
        host, _, port = controller.removeprefix("tcp://").rpartition(":")
        self._controller = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self.num_messages = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                theirs, _ = self._listening.accept()
            except OSError:
                return
            ours = socket.create_connection(self._controller)
            self._sockets += [theirs, ours]
            for each in (theirs, ours):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            counter = FrameCounter()
            threading.Thread(target=self._pass_on, args=(theirs, ours, counter), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(ours, theirs, None), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, counter: FrameCounter | None) -> None:
        try:
            while data := source.recv(1 << 16):
                if counter is not None:
                    self.num_messages += counter.feed(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            target.close()

    def close(self) -> None:
        """Close all connections: hosts lose their controller."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._sockets:
            each.close()
