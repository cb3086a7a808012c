"""Keeps the list of programs that use a mesh, as they connect and leave."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from monarch_nb._host.controller.registry import Client
from monarch_nb._host.controller.sending import Sends
from monarch_nb._protocol.base import Event
from monarch_nb._protocol.events import Notice
from monarch_nb._protocol.programs import Goodbye, Hello, InUse, Leaving, Welcome
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._protocol.roles import Role
from monarch_nb._wire import address

if TYPE_CHECKING:
    from monarch_nb._host.agent.router import Router
    from monarch_nb._host.controller.debug_service import DebugService
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.lease import Lease
    from monarch_nb._host.controller.members import Member, Members
    from monarch_nb._host.controller.orphans import Orphans
    from monarch_nb._host.controller.output_service import OutputService
    from monarch_nb._host.controller.question_service import QuestionService
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.controller.singletons import SingletonService
    from monarch_nb._host.controller.status_publisher import StatusPublisher
    from monarch_nb._host.local_sockets import LocalSockets
    from monarch_nb._host.loop import Loop
    from monarch_nb._wire.mesh_address import MeshAddress

_MAX_LEFT = 100
MAX_WHAT = 100
"""How many letters of what a member calls its program are kept."""


class Parts(Sends, Protocol):
    """The parts of a controller that this module uses."""

    debug: DebugService
    directory: str
    journal: JournalService
    lease: Lease
    local: LocalSockets
    loop: Loop
    members: Members
    name: str
    orphans: Orphans
    output: OutputService
    questions: QuestionService
    registry: Registry
    router: Router
    singletons: SingletonService
    status_publisher: StatusPublisher

    @property
    def mesh_address(self) -> MeshAddress:
        """The address of this mesh that handles carry."""
        ...


class ClientService:
    """The service that admits programs, detects that they have gone, and broadcasts events to them. Owned by
    the loop thread.
    """

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._left: dict[int, str] = {}
        """Names of the last programs that have left: the kernel may report a program's end before its last
        message is read.
        """

    @handles(Hello)
    def do_hello(self, request: Hello, sender: Sender) -> Welcome:
        """Register a connecting client, and answer with the facts about the mesh."""
        controller, member = self._controller, self._controller.members.of(sender.proc)
        client = self._of_member(member, request, sender) if member else self._own(request, sender)
        controller.registry.clients[sender.proc] = client
        controller.status_publisher.touch()
        if client.listens:
            controller.output.watch_own(client)
            if controller.journal.notice:
                controller.event(sender.proc, Notice("", controller.journal.notice))
        groups, role = controller.journal.store.groups, member.role if member else Role.OWNER
        return Welcome(os.getpid(), controller.name, controller.mesh_address, groups, role)

    def _own(self, request: Hello, sender: Sender) -> Client:
        """Return a program of the mesh's owner, on its machine."""
        client = Client(
            sender.proc, request.pid, request.what, request.number, request.listens, request.observes
        )
        client.kernel = request.kernel
        with suppress(OSError):
            client.pidfd = os.pidfd_open(client.pid)
            self._controller.loop.watch_file(client.pidfd, lambda: self._gone(client))
        return client

    def _of_member(self, member: Member, request: Hello, sender: Sender) -> Client:
        """Return a program of another user. Its pid has no meaning here; an observer keeps nothing alive, and
        isn't expected to read or to answer questions of ranks.
        """
        operates = member.role >= Role.OPERATOR
        what = self._controller.members.describe(member, request.what[:MAX_WHAT])
        listens, observes = request.listens and operates, request.observes or not operates
        return Client(sender.proc, 0, what, request.number, listens, observes)

    @handles(Leaving)
    def do_leaving(self, request: Leaving, sender: Sender) -> None:
        """Stop sending output to a client that is about to go: a kernel that is being shut down."""
        client = self._controller.registry.clients.get(sender.proc)
        if client is not None:
            self._shows_nothing(client)

    def _shows_nothing(self, client: Client) -> None:
        listened, client.listens = client.listens, False
        if listened and not self.anybody_listens:
            self._controller.journal.is_alone()
        self._controller.output.watches.drop_client(client.proc)

    @handles(InUse)
    def do_in_use(self, request: InUse, sender: Sender) -> None:
        """Note that a notebook uses this mesh from now on, of those that it's connected to."""
        client = self._controller.registry.clients.get(sender.proc)
        if client is not None:
            client.used = time.time()
            self._controller.status_publisher.touch()

    @handles(Goodbye)
    def do_goodbye(self, request: Goodbye, sender: Sender) -> None:
        """Remove a client that goes."""
        client = self._controller.registry.clients.get(sender.proc)
        if client is not None:
            self._gone(client)

    def forget(self, proc: int) -> None:
        """Remove a program that has gone, or was disconnected."""
        client = self._controller.registry.clients.get(proc)
        if client is not None:
            self._gone(client)

    def _gone(self, client: Client) -> None:
        controller = self._controller
        if client.pidfd >= 0:
            controller.loop.forget_file(client.pidfd)
            os.close(client.pidfd)
            client.pidfd = -1
        self._left[client.proc] = self.who(client.proc)
        while len(self._left) > _MAX_LEFT:
            del self._left[next(iter(self._left))]
        controller.registry.clients.pop(client.proc, None)
        self._shows_nothing(client)
        controller.status_publisher.drop(client.proc)
        controller.singletons.client_gone(client)
        controller.orphans.client_gone(client)
        controller.debug.client_gone(client.proc)
        controller.questions.client_gone(client.proc)
        controller.status_publisher.touch()
        controller.local.drop_route(client.proc)
        controller.router.forget(client.proc)
        if not client.observes:
            controller.lease.begin_anew()
        if not address.host_of(client.proc):  # a process of another machine may have the same pid
            with suppress(OSError):
                os.unlink(address.socket_path(controller.directory, client.proc))

    @property
    def anybody_listens(self) -> bool:
        """Whether any client shows output of ranks."""
        return any(c.listens for c in self._controller.registry.clients.values())

    def tell_listeners(self, event: Event) -> None:
        """Send an event to the clients that show output of ranks."""
        for client in self._controller.registry.clients.values():
            if client.listens:
                self._controller.event(client.proc, event)

    def who(self, proc: int) -> str:
        """Return the display name of a client."""
        found = self._controller.registry.clients.get(proc)
        if found is None:
            return self._left.get(proc, "a program that has left")
        return f"{found.what} (pid {found.pid})" if found.pid else found.what
