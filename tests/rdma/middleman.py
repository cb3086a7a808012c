"""A proxy between two ends of TCP connections, that can change a byte, hold everything, or cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

PATIENCE_S = 30.0


class Direction:
    """What happens to the bytes that go one way; they're counted over all connections."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.flip_at: int | None = None
        self.hold_at: int | None = None
        self.cut_at: int | None = None
        self.held = threading.Event()
        self.go = threading.Event()
        self.lock = threading.Lock()

    def treat(self, data: bytearray) -> bool:
        """Count bytes and change them; return False to cut."""
        with self.lock:
            start = self.num_bytes
            self.num_bytes += len(data)
            if self.flip_at is not None and start <= self.flip_at < self.num_bytes:
                data[self.flip_at - start] ^= 0x10
                self.flip_at = None
            if self.cut_at is not None and self.cut_at < self.num_bytes:
                self.cut_at = None
                return False
        if self.hold_at is not None and self.hold_at < self.num_bytes:
            self.held.set()
            self.go.wait(PATIENCE_S)
        return True


class Middleman:
    """Listens, and passes on to `target`.

    Attributes:
        up: from who dials; `down`: to them.
        num_connections: so far.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.up, self.down = Direction(), Direction()
        self.num_connections = 0
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listening.getsockname()
        self._socks: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="middleman", daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._target)
                self.num_connections += 1
                self._socks += [near, far]
                for source, sink, way in ((near, far, self.up), (far, near, self.down)):
                    thread = threading.Thread(
                        target=self._pump, args=(source, sink, way), name="middleman", daemon=True
                    )
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: Direction) -> None:
        with suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                if not way.treat(data):
                    break
                sink.sendall(data)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def let_go(self) -> None:
        """Hold no more."""
        for way in (self.up, self.down):
            way.hold_at = None
            way.go.set()

    def close(self) -> None:
        """End all."""
        self.let_go()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for sock in self._socks:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for sock in self._socks:
            sock.close()
