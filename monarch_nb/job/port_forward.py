"""Forwards TCP ports of ranks to other ranks, or to this program's machine: bytes travel in the mesh's own
messages, encrypted between machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from monarch_nb._shape import Point
from monarch_nb.actor.actor_mesh import Actor
from monarch_nb.actor.channel import Channel, PortReceiver
from monarch_nb.actor.context import context
from monarch_nb.actor.endpoint import concurrent_endpoint, endpoint
from monarch_nb.actor.proc_mesh import ProcMesh

BLOCK_BYTES = 1 << 16
LOOPBACK = "127.0.0.1"


class PortForwarder(Actor):
    """The actor that owns forwards: spawn one on this process, and stop it to end all of them.

    Example:
        >>> forwarder = this_proc().spawn("forwarder", PortForwarder)  # doctest: +SKIP
        >>> forwarder.forward.call_one(procs, 6006, this_proc(), "127.0.0.1:16006").get()  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._started: list[Any] = []

    @endpoint
    async def forward(
        self,
        dst_proc_mesh: ProcMesh,
        dst_port: int | Callable[[Point], int],
        src_proc_mesh: ProcMesh,
        src_address: str | Callable[[Point], str],
    ) -> None:
        """Have each process of `src_proc_mesh` listen, and connect who comes to `dst_port` of the one at the
        same place in `dst_proc_mesh`.

        Args:
            dst_port: port on 127.0.0.1 there, or a function of the point.
            src_address: "address:port" here, or a function of the point.

        Raises:
            ValueError: for meshes of different sizes, or what is no port or address.
            OSError: where nobody can listen there.
        """
        if dict(dst_proc_mesh.extent) != dict(src_proc_mesh.extent):
            raise ValueError(
                f"both meshes must have the same dimensions: {dst_proc_mesh.extent} and "
                f"{src_proc_mesh.extent} differ"
            )
        if not callable(dst_port):
            _check_port("dst_port", dst_port)
        if not callable(src_address):
            _address(src_address)
        exits: Any = dst_proc_mesh.spawn("port_exit", _Exit, dst_port)
        entries: Any = src_proc_mesh.spawn("port_entry", _Entry, exits, src_address)
        try:
            await exits.initialized
            await entries.listen.call()
        except BaseException:
            await exits.stop()
            await entries.stop()
            raise
        self._started += [entries, exits]

    async def __cleanup__(self, error: BaseException | None) -> None:
        for mesh in self._started:
            with suppress(Exception):
                await mesh.stop()


class _Relay(Actor):
    """The base class of both ends of a forwarding: bytes of a connection leave by a port, and arrive by
    another. None ends a direction.
    """

    def __init__(self) -> None:
        self._relays: set[asyncio.Task[None]] = set()

    def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, out: Any, back: PortReceiver[Any]
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._both_ways(reader, writer, out, back))
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)

    async def _both_ways(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, out: Any, back: PortReceiver[Any]
    ) -> None:
        try:
            await asyncio.gather(_send(reader, out), _receive(back, writer))
        except (OSError, RuntimeError):
            with suppress(Exception):
                out.send(None)
        finally:
            back.close()
            writer.close()

    async def __cleanup__(self, error: BaseException | None) -> None:
        """Do nothing: the connections have ended with the event loop that they belonged to."""


async def _send(reader: asyncio.StreamReader, out: Any) -> None:
    while True:
        block = await reader.read(BLOCK_BYTES)
        out.send(block or None)
        if not block:
            return


async def _receive(back: PortReceiver[Any], writer: asyncio.StreamWriter) -> None:
    while (block := await back.recv()) is not None:
        writer.write(block)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


class _Exit(_Relay):
    """The end of a forwarding that connects to the service."""

    def __init__(self, port: int | Callable[[Point], int]) -> None:
        super().__init__()
        self._port = _check_port("dst_port", port(context().actor_instance.rank) if callable(port) else port)

    @concurrent_endpoint
    async def open(self, back_to: Any) -> Any:
        """Connect; return the port that takes the bytes for the service."""
        reader, writer = await asyncio.open_connection(LOOPBACK, self._port)
        port, receiver = Channel.open()
        self._relay(reader, writer, back_to, receiver)
        return port


class _Entry(_Relay):
    """The end of a forwarding that listens for connections to the service."""

    def __init__(self, exits: Any, address: str | Callable[[Point], str]) -> None:
        super().__init__()
        point = context().actor_instance.rank
        self._exit = exits.slice(**point) if point else exits
        self._address = _address(address(point) if callable(address) else address)
        self._server: asyncio.Server | None = None

    @endpoint
    async def listen(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._accept, *self._address)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port, receiver = Channel.open()
        try:
            out = await self._exit.open.call_one(port)
        except Exception:  # nobody listens there, which is the answer to the connecting program
            receiver.close()
            writer.close()
            return
        self._relay(reader, writer, out, receiver)


def _check_port(what: str, port: Any) -> int:
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ValueError(f"{what} is a number from 1 to 65535, not {port!r}")
    return port


def _address(text: Any) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise ValueError(f"src_address looks like 127.0.0.1:8080 or [::1]:8080, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), _check_port("the port of src_address", int(port))
