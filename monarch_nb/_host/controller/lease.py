"""Manages the owner and the lease of a mesh: it belongs to a process, with which it ends, or to its user,
under a name and as long as programs use it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Protocol

from monarch_nb._host.config import HostConfig
from monarch_nb._host.controller.environment import describe_environment
from monarch_nb._host.controller.lease_state import LeaseState
from monarch_nb._host.controller.sending import SendsFrames
from monarch_nb._host.request import RequestError
from monarch_nb._protocol.events import MeshNamed
from monarch_nb._protocol.journal import JournalEntry
from monarch_nb._protocol.programs import Adopt, SetLease, SetOwner
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._protocol.states import EntryKind

if TYPE_CHECKING:
    from monarch_nb._host.controller.cells import Cells
    from monarch_nb._host.controller.debug_service import DebugService
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.mesh_name import MeshName
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.loop import Loop


class Parts(SendsFrames, Protocol):
    """The parts of a controller that this module uses."""

    cells: Cells
    config: HostConfig
    debug: DebugService
    environment_id: str
    hostname: str
    journal: JournalService
    loop: Loop
    mesh_name: MeshName
    name: str
    registry: Registry
    versions: dict[str, str]

    def shut_down(self, how: str = "") -> None:
        """End the mesh."""
        ...


class Lease:
    """The service that ends the mesh with its owner, or when its lease expires. Owned by the loop thread."""

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self.owner_pid: int | None = None
        """The process that this mesh ends with, if there is one."""
        self._owner_fd = -1
        """Descriptor that watches the owner."""
        self._state = LeaseState(None, time.monotonic())
        if controller.config.owner_pid:
            self._watch_owner(controller.config.owner_pid)
        if self.idle_timeout_s:
            self._look_later()

    @property
    def idle_timeout_s(self) -> float | None:
        """The time that the mesh lives without client and running cell; None: it has no lease."""
        return self._state.idle_timeout_s

    # --- the owner

    def belong_to(self, pid: int) -> None:
        """Bind the mesh to another process, with which it ends."""
        self._forget_owner()
        self._watch_owner(pid)

    def _watch_owner(self, pid: int) -> None:
        try:
            self._owner_fd = os.pidfd_open(pid)
        except OSError:
            self._controller.loop.call_later(0, self._controller.shut_down)
            return

        def gone() -> None:
            self._forget_owner()
            self._controller.shut_down(f"ended with the program that it belonged to (pid {pid})")

        self._controller.loop.watch_file(self._owner_fd, gone)
        self.owner_pid = pid

    def _forget_owner(self) -> None:
        """Unbind the mesh from its owner process."""
        fd, self._owner_fd, self.owner_pid = self._owner_fd, -1, None
        if fd >= 0:
            self._controller.loop.forget_file(fd)
            os.close(fd)

    @handles(Adopt)
    def do_adopt(self, request: Adopt, sender: Sender) -> None:
        """Become a named mesh of its user; with an `owner_pid`, it nevertheless ends with that process."""
        controller = self._controller
        if not controller.mesh_name.is_claimed:
            raise RequestError(f"this controller has no claim to the name {request.name!r}")
        controller.name = request.name
        for to in controller.everybody():
            controller.event(to, MeshNamed(controller.name))
        self._state.idle_timeout_s = request.idle_timeout_s
        if request.journal:
            controller.journal.move(request.journal)
        environment = describe_environment(controller.hostname, request.env)
        controller.environment_id = environment.id
        controller.versions = {"python": environment.python, **environment.packages}
        entry = JournalEntry(
            EntryKind.START,
            when=controller.registry.started,
            ranks=request.rank_set,
            dims=request.dims,
            environment=environment,
        )
        controller.journal.note(sender.proc, entry)
        controller.mesh_name.show(request.connection_file)
        self._forget_owner()  # last: an earlier error must not leave a controller that cannot be found
        if request.owner_pid:
            self._watch_owner(request.owner_pid)
        if self.idle_timeout_s:
            self._look_later()

    # --- the lease

    def begin_anew(self) -> None:
        """Restart the idle time: the mesh was in use until now."""
        self._state.begin_anew(time.monotonic())

    def _look_later(self) -> None:
        delay_s = self._state.next_look_s(time.monotonic())
        if delay_s is not None:
            self._controller.loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        has_name = self.idle_timeout_s is None or self._controller.mesh_name.stays()
        how = self._state.look(time.monotonic(), is_held=self._is_held(), has_name=has_name)
        if how:
            self._controller.shut_down(how)
        else:
            self._look_later()

    def _is_held(self) -> bool:
        """Say whether a client or a cell keeps the mesh alive; an observer doesn't."""
        controller = self._controller
        return (
            controller.cells.num_running > 0
            or controller.debug.num_stopped > 0
            or any(not c.observes for c in controller.registry.clients.values())
        )

    def left_s(self) -> float | None:
        """Return the seconds until the unused mesh ends; None while it is in use, or if it has no lease."""
        return self._state.left_s(time.monotonic(), is_held=self._is_held())

    @handles(SetLease)
    def do_set_lease(self, request: SetLease, sender: Sender) -> None:
        """Set how long the mesh lives without a client and a running cell; the time starts again."""
        self._state.idle_timeout_s = request.idle_timeout_s
        self.begin_anew()
        self._look_later()
        self._controller.journal.note(
            sender.proc, JournalEntry(EntryKind.COMMAND, source=f"%mesh lease {request.idle_timeout_s:g}s")
        )

    @handles(SetOwner)
    def do_set_owner(self, request: SetOwner, sender: Sender) -> None:
        """Set the process with which the mesh ends, or none.

        Raises:
            RequestError: if it isn't there.
        """
        pid = request.owner_pid
        if pid is not None and not os.path.exists(f"/proc/{int(pid)}"):
            raise RequestError(f"there's no process {pid} that this mesh could end with")
        self._forget_owner()
        if pid is not None:
            self._watch_owner(int(pid))
        line = f"%mesh start {self._controller.name} {'--keep' if pid is None else '--with-kernel'}"
        self._controller.journal.note(sender.proc, JournalEntry(EntryKind.COMMAND, source=line))
