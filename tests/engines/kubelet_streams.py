"""What a kubelet serves to the API server: commands in a container, and connections to a pod's ports, by
websockets, as Kubernetes' protocol v4.channel.k8s.io has them.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket

PROTOCOL = "v4.channel.k8s.io"
_OUT, _ERR, _STATUS = 1, 2, 3
Mounted = Callable[[str, list[str]], list[str]]
"""A command of a pod (`NAMESPACE/NAME`) as it's run here."""


class _Stream(tornado.websocket.WebSocketHandler):
    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return PROTOCOL if PROTOCOL in subprotocols else None

    def check_origin(self, origin: str) -> bool:
        return True  # no browser is there to be deceived

    async def say(self, channel: int, content: bytes) -> None:
        with suppress(tornado.websocket.WebSocketClosedError):
            await self.write_message(bytes((channel,)) + content, binary=True)


class _Exec(_Stream):
    """A command in a container: its output, then its status."""

    def initialize(self, mounted: Mounted) -> None:
        self.mounted = mounted

    async def open(self, pod: str, _container: str) -> None:
        argv = self.mounted(pod, self.get_arguments("command"))
        ran = await asyncio.to_thread(subprocess.run, argv, capture_output=True, stdin=subprocess.DEVNULL)
        await self.say(_OUT, ran.stdout)
        await self.say(_ERR, ran.stderr)
        status: dict[str, object] = {"status": "Success"}
        if ran.returncode:
            causes = [{"reason": "ExitCode", "message": str(ran.returncode)}]
            status = {"status": "Failure", "message": "command failed", "details": {"causes": causes}}
        await self.say(_STATUS, json.dumps(status).encode())
        self.close()


class _PortForward(_Stream):
    """A connection to a port: channel 0 has its bytes, channel 1 what went wrong."""

    writer: asyncio.StreamWriter | None = None

    def initialize(self, forwarded: list[_PortForward]) -> None:
        self.forwarded = forwarded

    async def open(self, _pod: str) -> None:
        self.set_nodelay(True)
        (port,) = map(int, self.get_arguments("port"))
        for channel in (0, 1):
            await self.say(channel, port.to_bytes(2, "little"))
        try:
            reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            await self.say(1, f"error forwarding port {port} to pod: {error}".encode())
            self.close()
            return
        self.forwarded.append(self)
        self.reading = asyncio.create_task(self._read(reader))  # no message is taken before this returns

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while block := await reader.read(1 << 16):
            await self.say(0, block)
        self.close()

    async def on_message(self, message: str | bytes) -> None:
        assert isinstance(message, bytes)
        if self.writer is None:  # the port couldn't be connected to, as was said
            return
        self.writer.write(message[1:])
        with suppress(ConnectionError):  # the port's end has closed it, which the reader sees
            await self.writer.drain()

    def on_close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class Streams:
    """The server.

    Attributes:
        port: where it listens, on 127.0.0.1.
    """

    def __init__(self, folder: Path, mounted: Mounted) -> None:
        files = ("-keyout", f"{folder}/kubelet.key", "-out", f"{folder}/kubelet.crt")
        make = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kubelet")
        subprocess.run([*make, *files], check=True, capture_output=True)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(f"{folder}/kubelet.crt", f"{folder}/kubelet.key")
        self._mounted = mounted
        self._forwarded: list[_PortForward] = []
        (self._socket,) = tornado.netutil.bind_sockets(0, "127.0.0.1")
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        routes = [
            (r"/exec/([^/]+/[^/]+)/(.+)", _Exec, {"mounted": self._mounted}),
            (r"/portForward/([^/]+/[^/]+)", _PortForward, {"forwarded": self._forwarded}),
        ]
        server = tornado.httpserver.HTTPServer(tornado.web.Application(routes), ssl_options=self._context)
        server.add_sockets([self._socket])
        self._loop.run_forever()

    def cut(self) -> int:
        """End all connections to ports, as when the API server or a network between ends; return how many
        there were.
        """

        async def close() -> int:
            found = [each for each in self._forwarded if each.ws_connection is not None]
            for each in found:
                each.close()
            self._forwarded.clear()
            return len(found)

        return asyncio.run_coroutine_threadsafe(close(), self._loop).result(20)

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._socket.close()
