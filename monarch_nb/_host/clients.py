"""The programs that use a mesh: who comes, who goes."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb._host.registry import Client
from monarch_nb._wire import address
from monarch_nb._wire.message import Message

if TYPE_CHECKING:
    from monarch_nb._host.home import HomeProcess

_MAX_LEFT = 100


class ClientDesk:
    """Owned by the loop thread."""

    def __init__(self, home: HomeProcess) -> None:
        self._home = home
        self._left: dict[int, str] = {}
        """What those who have left were known by, the last ones: the kernel may tell of a program's end before its last message is read."""

    def do_hello(self, message: Message, fields: dict[str, Any]) -> object:
        """A client comes."""
        home = self._home
        client = Client(message.src, fields["pid"], fields["what"], fields["number"], fields["listens"], fields.get("observes", False))
        client.kernel = fields.get("kernel", "")
        with suppress(OSError):
            client.pidfd = os.pidfd_open(client.pid)
            home.loop.watch_file(client.pidfd, lambda: self._gone(client))
        home.registry.clients[message.src] = client
        home.status_publisher.touch()
        if client.listens:
            home.output.watch_own(client)
            if home.journal.notice:
                home.event(message.src, "notice", {"group": "", "what": home.journal.notice})
        return {
            "pid": os.getpid(),
            "name": home.name,
            "mesh": tuple(home.mesh_address),
            "groups": home.journal.store.groups,
            "python": sys.version_info[:3],
        }

    def do_leaving(self, message: Message, fields: dict[str, Any]) -> object:
        """A client is about to go, and shows nothing any more: a kernel that is being shut down."""
        client = self._home.registry.clients.get(message.src)
        if client is not None:
            self._shows_nothing(client)
        return None

    def _shows_nothing(self, client: Client) -> None:
        listened, client.listens = client.listens, False
        if listened and not self.anybody_listens:
            self._home.journal.is_alone()
        self._home.output.watches.drop_client(client.proc)

    def do_in_use(self, message: Message, fields: dict[str, Any]) -> object:
        """A notebook uses this mesh from now on, of those that it's connected to."""
        client = self._home.registry.clients.get(message.src)
        if client is not None:
            client.used = time.time()
            self._home.status_publisher.touch()
        return None

    def do_goodbye(self, message: Message, fields: dict[str, Any]) -> object:
        """A client goes."""
        client = self._home.registry.clients.get(message.src)
        if client is not None:
            self._gone(client)
        return None

    def _gone(self, client: Client) -> None:
        home = self._home
        if client.pidfd >= 0:
            home.loop.forget_file(client.pidfd)
            os.close(client.pidfd)
            client.pidfd = -1
        self._left[client.proc] = self.who(client.proc)
        while len(self._left) > _MAX_LEFT:
            del self._left[next(iter(self._left))]
        home.registry.clients.pop(client.proc, None)
        self._shows_nothing(client)
        home.status_publisher.drop(client.proc)
        home.controllers.client_gone(client)
        home.debug.client_gone(client.proc)
        home.questions.client_gone(client.proc)
        home.status_publisher.touch()
        home.drop_route(client.proc)
        home.router.forget(client.proc)
        if not client.observes:
            home.lease.begin_anew()
        with suppress(OSError):
            os.unlink(address.socket_path(home.directory, client.proc))

    @property
    def anybody_listens(self) -> bool:
        """Whether some client shows what ranks print."""
        return any(c.listens for c in self._home.registry.clients.values())

    def tell_listeners(self, name: str, fields: dict[str, Any]) -> None:
        """Send news to the clients that show what ranks print."""
        for client in self._home.registry.clients.values():
            if client.listens:
                self._home.event(client.proc, name, fields)

    def who(self, proc: int) -> str:
        """Return what people know a client by."""
        found = self._home.registry.clients.get(proc)
        return f"{found.what} (pid {found.pid})" if found is not None else self._left.get(proc, "a program that has left")
