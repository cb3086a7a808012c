"""Addresses of workers in the user's syntax: where a worker listens, and where programs reach it.

tcp://10.0.0.5:7000         a port, on an address of this machine; tcp://[fd00::5]:7000, tcp://name:7000
tcp://10.0.0.5:fd3          a socket that listens already, inherited as descriptor 3
ipc:///run/worker           on one machine: a path; or an abstract name, ipc://@name
DIAL@BIND                   programs dial the one, the worker listens at the other
service@ADDRESS             the name before it means nothing here
"""

from __future__ import annotations

import re
import socket

import msgspec

_TCP = re.compile(r"tcp://(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]/]+)):(?:(?P<port>\d+)|fd(?P<fd>\d+))\Z")
_IPC = re.compile(r"ipc://(?P<path>[^@].*|@.+)\Z")
EXAMPLES = "tcp://10.0.0.5:7000, tcp://[fd00::5]:7000, tcp://host:fd3, ipc:///run/worker, or DIAL@BIND"
MAX_IPC_BYTES = 107


class Endpoint(msgspec.Struct, frozen=True):
    """An address of one protocol.

    Attributes:
        host: name or number; empty for ipc.
        path: for ipc.
        fd: descriptor of a listening socket, if the address is one.
    """

    host: str = ""
    port: int = 0
    path: str = ""
    fd: int | None = None

    @property
    def is_v6(self) -> bool:
        """Whether the host is an IPv6 number."""
        return ":" in self.host

    def __str__(self) -> str:
        return f"ipc://{self.path}" if self.path else tcp(self.host, self.port)


class WorkerAddress(msgspec.Struct, frozen=True):
    """The address of a worker: where it listens (`bind`), and where programs reach it (`dial`)."""

    dial: Endpoint
    bind: Endpoint


def tcp(host: str, port: int | str) -> str:
    """Return a ZeroMQ endpoint.

    >>> tcp("::1", "*")
    'tcp://[::1]:*'
    """
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def parse(text: str) -> WorkerAddress:
    """Parse a worker's address.

    >>> parse("tcp://node5:7000@tcp://0.0.0.0:7000").bind.host
    '0.0.0.0'

    Raises:
        ValueError: saying what one looks like.
    """
    if not isinstance(text, str):
        raise ValueError(f"a worker's address is text, as in {EXAMPLES}; not {text!r}")
    name, at, rest = text.partition("@")
    if at and "://" not in name:
        text = rest
    dial, at, bind = text.partition("@tcp://")
    if not at:
        dial, at, bind = text.partition("@ipc://")
    first = _endpoint(dial, text)
    return WorkerAddress(first, _endpoint(at[1:] + bind, text) if at else first)


def _endpoint(text: str, whole: str) -> Endpoint:
    match = _IPC.match(text)
    if match is not None:
        path = match["path"]
        if len(path.encode()) > MAX_IPC_BYTES:
            raise ValueError(
                f"the path of {text!r} is longer than the {MAX_IPC_BYTES} bytes that a unix socket's may have"
            )
        return Endpoint(path=path)
    match = _TCP.match(text)
    if match is None or int(match["port"] or 1) > 65535:
        raise ValueError(f"a worker's address looks like {EXAMPLES}; not {whole!r}")
    host = match["v6"] or match["host"]
    if match["fd"] is None:
        return Endpoint(host, int(match["port"]))
    return Endpoint(host, fd=int(match["fd"]))


def listening(address: WorkerAddress) -> Endpoint:
    """Return the endpoint for a worker to listen at: with numeric addresses, since names can't be bound; for
    an inherited socket, its own.

    Raises:
        ValueError: for a name that nobody knows, or a descriptor that isn't a listening socket.
    """
    bind = address.bind
    if bind.path or bind.host == "*":
        return bind
    if bind.fd is not None:
        return _inherited(bind.fd)
    try:
        rows = socket.getaddrinfo(bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ValueError(f"no worker can listen at {bind}: {bind.host}: {error.strerror or error}") from None
    rows.sort(key=lambda row: row[0] != socket.AF_INET)
    return Endpoint(str(rows[0][4][0]), bind.port)


def _inherited(fd: int) -> Endpoint:
    try:
        with socket.socket(fileno=socket.dup(fd)) as own:
            if not own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) or own.family not in (
                socket.AF_INET,
                socket.AF_INET6,
            ):
                raise ValueError(f"descriptor {fd} is no tcp socket that listens")
            host, port = own.getsockname()[:2]
            return Endpoint(host, port, fd=fd)
    except OSError as error:
        raise ValueError(f"descriptor {fd} is no socket of this process: {error.strerror}") from None


def own_address_towards(worker: WorkerAddress) -> str:
    """Return the address of this machine from which it would reach a worker.

    Raises:
        ValueError: for a name that nobody knows, or a port that only the worker knows.
    """
    dial = worker.dial
    if dial.path:
        return "127.0.0.1"
    if dial.fd is not None:
        raise ValueError(
            f"a program can't dial fd{dial.fd}, a descriptor of the worker's: give the port that it "
            "listens at"
        )
    try:
        family, _, _, _, to = socket.getaddrinfo(dial.host, dial.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(to)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ValueError(f"no way to {dial}: {error.strerror or error}") from None
