"""Hands a controller that was started without an owner over to the first program that takes it; from then on
it belongs to that program as if started by it.

It listens at a socket in its private directory (SOCK_SEQPACKET). Its keeper (`_client/keeper`) connects first
and hears of it: that it's warm, that it was taken. A program sends what it has and a new interpreter would
have inherited, in a memory file; the controller takes that on, answers `YOURS`, and waits for `THANKS`. Who
leaves without that may not have heard of it, so the controller ends, rather than belong to somebody who
doesn't know. Whose it is, is the pid that the kernel gives for the connection, nothing that is said on it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from monarch_nb._host.config import HostConfig
from monarch_nb._protocol.warm import Requirements, WarmFacts
from monarch_nb._wire.claim import Claim

if TYPE_CHECKING:
    from monarch_nb._host.agent.supervisor import Supervisor
    from monarch_nb._host.controller.lease import Lease
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.loop import Loop

CLAIM, YOURS, THANKS, TAKEN, WARM = b"claim", b"yours", b"thanks", b"taken", b"warm"
_FACTS = "warm.json"
_MAX_BYTES = 8 << 20
_PEER = struct.Struct("3i")
_KEEPER_ENDS_S = 2.0
"""How long a keeper that has closed its connection may take to end."""


class Parts(Protocol):
    """The parts of a controller that this module uses."""

    config: HostConfig
    directory: str
    lease: Lease
    loop: Loop
    registry: Registry
    supervisor: Supervisor

    def shut_down(self, how: str = "") -> None:
        """End the mesh."""
        ...


class Belongings(NamedTuple):
    """The settings of a program that it hands over to the controller it takes.

    Attributes:
        environ: its environment.
        path: its module path.
        cwd: its working directory.
    """

    environ: dict[str, str]
    path: list[str]
    cwd: str


def socket_path(directory: str) -> str:
    """Return the path of the socket on which a controller waits for the program that takes it."""
    return os.path.join(directory, "handover")


def read_facts(directory: str) -> WarmFacts:
    """Return the facts that a warm controller has written about itself.

    Raises:
        OSError, ValueError: if it has gone, or says something else.
    """
    with open(os.path.join(directory, _FACTS), "rb") as file:
        return WarmFacts.of_json(file.read())


class Handover:
    """The service that gives a warm controller to the first program that takes it. Owned by the loop thread.
    It does nothing in a controller that belongs to whoever has started it.
    """

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._keeper: socket.socket | None = None
        self._taker: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._claim_path = controller.config.warm_claim
        if self._claim_path:
            listener = self._listener = socket.socket(
                socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
            )
            listener.bind(socket_path(controller.directory))
            listener.listen(64)
            controller.loop.watch_file(listener.fileno(), self._accept)
            controller.supervisor.on_warm = self._is_warm

    @property
    def _is_free(self) -> bool:
        return self._listener is not None and self._taker is None

    def _accept(self) -> None:
        assert self._listener is not None
        with suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._connections.add(connection)
            if self._keeper is None and _peer(connection) == self._controller.lease.owner_pid:
                self._keeper = connection
                if self._controller.supervisor.warm:  # the zygote was ready before the keeper
                    self._tell_keeper(WARM)
            self._controller.loop.watch_file(connection.fileno(), lambda: self._hear(connection))

    def _hear(self, connection: socket.socket) -> None:
        fds: list[int] = []
        try:
            data, fds, _, _ = socket.recv_fds(connection, 64, 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if connection is self._taker:
                self._settle(data)
            elif connection is self._keeper:
                self._keeper_has_gone()
            elif data == CLAIM and len(fds) == 1 and self._is_free:
                self._offer(connection, fds[0])
            else:
                self._dismiss(connection)
        finally:
            for fd in fds:
                os.close(fd)

    def _is_warm(self, modules: dict[str, list[str]]) -> None:
        """Handle the zygote's report that all modules are imported: write the facts of this process, and tell
        the keeper that programs may take it.
        """
        config = self._controller.config
        facts = WarmFacts(config.sys_path, modules, Requirements.of_json(config.requirements.encode()))
        path = os.path.join(self._controller.directory, _FACTS)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(facts.as_json())
        self._tell_keeper(WARM)

    def _offer(self, connection: socket.socket, fd: int) -> None:
        """Give this controller to a program, and tell the program."""
        controller = self._controller
        try:
            belongings = _read(fd)
        except (OSError, ValueError, TypeError, KeyError):
            self._dismiss(connection)
            return
        if not controller.supervisor.warm or controller.supervisor.zygote_pid is None:
            self._dismiss(connection)
            controller.shut_down()  # the requirements differ; the keeper starts another controller
            return
        self._taker = connection
        try:
            controller.lease.belong_to(_peer(connection))
            self._take_on(belongings)
            connection.send(YOURS)
        except OSError:
            controller.shut_down()
        self._tell_keeper(TAKEN)

    def _take_on(self, belongings: Belongings) -> None:
        """Adopt the settings that the program would have set had it started the controller itself."""
        controller = self._controller
        os.environ.clear()
        os.environ.update(belongings.environ)
        with suppress(OSError):
            os.chdir(belongings.cwd)
        controller.config = controller.config._replace(sys_path=belongings.path)
        controller.registry.started = time.time()
        controller.supervisor.move(belongings._asdict(), belongings.path)

    def _settle(self, data: bytes) -> None:
        """Finish the handover: the program has learnt that it has this controller. If it has gone instead,
        end the mesh.
        """
        if data != THANKS:
            self._controller.shut_down()
        for connection in list(self._connections):
            self._dismiss(connection)
        assert self._listener is not None
        self._controller.loop.forget_file(self._listener.fileno())
        self._listener.close()
        self._listener = None
        for name in (_FACTS, os.path.basename(socket_path(""))):
            with suppress(OSError):
                os.unlink(os.path.join(self._controller.directory, name))

    def _keeper_has_gone(self) -> None:
        assert self._keeper is not None
        was_killed = _is_closed(self._keeper)
        self._dismiss(self._keeper)
        self._keeper = None
        # One that is killed loses its claim some moments after its connections, and `close` is to take that:
        # by then this mesh ends with its owner.
        self._controller.loop.call_later(_KEEPER_ENDS_S if was_killed else 0.0, self._end_if_free)

    def _end_if_free(self) -> None:
        if self._is_free:
            self._controller.shut_down()

    def close(self) -> None:
        """Clean up as this controller ends: if no program has taken it, and its keeper was killed, remove the
        keeper's files, too.
        """
        if self._is_free:
            with suppress(OSError):
                claim = Claim.acquire(self._claim_path)
                if claim is not None:
                    claim.release()

    def _tell_keeper(self, event: bytes) -> None:
        if self._keeper is not None:
            with suppress(OSError):
                self._keeper.send(event)

    def _dismiss(self, connection: socket.socket) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._controller.loop.forget_file(connection.fileno())
            connection.close()


def _is_closed(connection: socket.socket) -> bool:
    """Say whether the other end was closed; if it only was shut down for sending, its process lives."""
    poll = select.poll()
    poll.register(connection, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _peer(connection: socket.socket) -> int:
    """Return the pid of the process at the other end."""
    return int(_PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0])


def _read(fd: int) -> Belongings:
    """Read the settings that a program hands over; never blocks, whatever the descriptor is."""
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode) or not 0 < about.st_size <= _MAX_BYTES:
        raise ValueError("this is no memory file")
    found = json.loads(os.pread(fd, about.st_size, 0))
    belongings = Belongings(dict(found["environ"]), list(found["path"]), found["cwd"])
    texts = [*belongings.environ, *belongings.environ.values(), *belongings.path, belongings.cwd]
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise ValueError("this isn't what a program has")
    return belongings
