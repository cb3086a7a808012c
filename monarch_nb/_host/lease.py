"""Whose a mesh is and how long it lives: a process's, which it ends with, or its user's, under a name and for as long as somebody comes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from monarch_nb._host.environment import describe_environment
from monarch_nb._host.request import RequestError
from monarch_nb._protocol.events import MeshNamed
from monarch_nb._protocol.programs import Adopt, SetLease, SetOwner
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._protocol.states import EntryKind
from monarch_nb.status import duration

if TYPE_CHECKING:
    from monarch_nb._host.home import HomeProcess

_LOOK_S = 5.0


class Lease:
    """Owned by the loop thread."""

    def __init__(self, home: HomeProcess) -> None:
        self._home = home
        self.owner_pid: int | None = None
        """The process that this mesh ends with, if there is one."""
        self._owner_fd = -1
        """Watches it."""
        self.idle_timeout_s: float | None = home.config.get("idle_timeout_s")
        self._idle_since = time.monotonic()
        if home.config.get("owner_pid"):
            self._watch_owner(home.config["owner_pid"])
        if self.idle_timeout_s:
            self._look_later(self.idle_timeout_s)

    # --- whose it is

    def belong_to(self, pid: int) -> None:
        """End with another process than until now."""
        self._forget_owner()
        self._watch_owner(pid)

    def _watch_owner(self, pid: int) -> None:
        try:
            self._owner_fd = os.pidfd_open(pid)
        except OSError:
            self._home.loop.call_later(0, self._home.shut_down)
            return

        def gone() -> None:
            self._forget_owner()
            self._home.shut_down(f"ended with the program that it belonged to (pid {pid})")

        self._home.loop.watch_file(self._owner_fd, gone)
        self.owner_pid = pid

    def _forget_owner(self) -> None:
        """Belong to no process any more."""
        fd, self._owner_fd, self.owner_pid = self._owner_fd, -1, None
        if fd >= 0:
            self._home.loop.forget_file(fd)
            os.close(fd)

    @handles(Adopt)
    def do_adopt(self, request: Adopt, sender: Sender) -> None:
        """Become a named mesh that belongs to its user; with an `owner_pid`, it ends with that process nevertheless."""
        home = self._home
        if not home.mesh_name.is_claimed:
            raise RequestError(f"this home has no claim to the name {request.name!r}")
        home.name = request.name
        for to in home.everybody():
            home.event(to, MeshNamed(home.name))
        self.idle_timeout_s = request.idle_timeout_s
        if request.journal:
            home.journal.move(request.journal)
        environment = describe_environment(home.hostname, request.env)
        home.environment_id = environment["id"]
        home.versions = {"python": environment["python"], **environment["packages"]}
        home.journal.note(
            sender.proc, EntryKind.START, when=home.registry.started, ranks=request.rank_set, dims=request.dims, environment=environment
        )
        home.mesh_name.show(request.connection_file)
        self._forget_owner()  # last: what goes wrong before leaves no home that nobody can find
        if request.owner_pid:
            self._watch_owner(request.owner_pid)
        if self.idle_timeout_s:
            self._look_later(self.idle_timeout_s)

    # --- how long it lives

    def begin_anew(self) -> None:
        """Somebody was there until now."""
        self._idle_since = time.monotonic()

    def _look_later(self, idle_timeout_s: float) -> None:
        self._home.loop.call_later(min(idle_timeout_s, _LOOK_S), self._look)

    def _look(self) -> None:
        if self.idle_timeout_s is None:
            return
        home = self._home
        if not home.mesh_name.stays() and not self._is_held():
            home.shut_down("ended: its files were removed, and another mesh has its name")
            return
        if self._is_held():
            self.begin_anew()
        if time.monotonic() - self._idle_since >= self.idle_timeout_s:
            home.shut_down(f"ended by its lease: no client and no running cell for {duration(self.idle_timeout_s)}")
        else:
            self._look_later(self.idle_timeout_s)

    def _is_held(self) -> bool:
        """Say whether a client or a cell keeps the mesh alive; who only looks on doesn't."""
        home = self._home
        return home.cells.num_running > 0 or home.debug.num_stopped > 0 or any(not c.observes for c in home.registry.clients.values())

    def left_s(self) -> float | None:
        """Return the seconds until the mesh ends if nobody comes; None while somebody is there, or if it has no lease."""
        if self.idle_timeout_s is None or self._is_held():
            return None
        return round(max(0.0, self.idle_timeout_s - (time.monotonic() - self._idle_since)), 1)

    @handles(SetLease)
    def do_set_lease(self, request: SetLease, sender: Sender) -> None:
        """Say after how long without client and running cell the mesh ends; the time begins anew."""
        had_none = not self.idle_timeout_s
        self.idle_timeout_s = request.idle_timeout_s
        self.begin_anew()
        if had_none:
            self._look()
        self._home.journal.note(sender.proc, EntryKind.COMMAND, source=f"%mesh lease {request.idle_timeout_s:g}s")

    @handles(SetOwner)
    def do_set_owner(self, request: SetOwner, sender: Sender) -> None:
        """End with a process, or with none.

        Raises:
            RequestError: if it isn't there.
        """
        pid = request.owner_pid
        if pid is not None and not os.path.exists(f"/proc/{int(pid)}"):
            raise RequestError(f"there's no process {pid} that this mesh could end with")
        self._forget_owner()
        if pid is not None:
            self._watch_owner(int(pid))
        self._home.journal.note(sender.proc, EntryKind.COMMAND, source=f"%mesh start {self._home.name} {'--keep' if pid is None else '--with-kernel'}")
