"""Whose a mesh is and how long it lives: a process's, which it ends with, or its user's, under a name and for as long as somebody comes."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb._host.environment import describe_environment
from monarch_nb._wire import message as wire
from monarch_nb._wire.message import Message

if TYPE_CHECKING:
    from monarch_nb._host.home import HomeProcess

_LOOK_S = 5.0


class Lease:
    """Owned by the loop thread."""

    def __init__(self, home: HomeProcess) -> None:
        self._home = home
        self._owner: int | None = home.config.get("owner_pid")
        self.idle_timeout_s: float | None = home.config.get("idle_timeout_s")
        self._idle_since = time.monotonic()
        if self._owner:
            self._watch_owner(self._owner)
        if self.idle_timeout_s:
            self._look_later(self.idle_timeout_s)
        if home.config.get("connection_file"):
            self._write_connection_file()

    # --- whose it is

    def _watch_owner(self, pid: int) -> None:
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            self._home.loop.call_later(0, self._home.shut_down)
            return

        def gone() -> None:
            self._home.loop.forget_file(fd)
            if self._owner == pid:
                self._home.shut_down()

        self._home.loop.watch_file(fd, gone)

    def do_adopt(self, message: Message, fields: dict[str, Any]) -> object:
        """Become a named mesh that belongs to its user, not to a process."""
        home = self._home
        self._owner = None
        home.name = fields["name"]
        self.idle_timeout_s = fields["idle_timeout_s"]
        home.config["connection_file"] = fields["connection_file"]
        if fields.get("journal"):
            home.journal.move(fields["journal"])
        environment = describe_environment(home.hostname, fields.get("env") or {})
        home.environment_id = environment["id"]
        home.versions = {"python": environment["python"], **environment["packages"]}
        home.journal.note(
            message.src, "start", when=home.registry.started, ranks=fields.get("rank_set", ""), dims=fields.get("dims"), environment=environment
        )
        self._write_connection_file()
        if self.idle_timeout_s:
            self._look_later(self.idle_timeout_s)
        return None

    def _write_connection_file(self) -> None:
        home = self._home
        path = home.config["connection_file"]
        content = {
            "name": home.name,
            "pid": os.getpid(),
            "directory": home.directory,
            "hostname": home.hostname,
            "wire_version": wire.VERSION,
            "started": home.registry.started,
            "journal": home.journal.store.directory,
        }
        temporary = f"{path}.{os.getpid()}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "w") as file:
            json.dump(content, file)
        os.replace(temporary, path)

    def end(self) -> None:
        """The mesh ends: nobody can find it any more."""
        if self._home.config.get("connection_file"):
            with suppress(OSError):
                os.unlink(self._home.config["connection_file"])

    # --- how long it lives

    def begin_anew(self) -> None:
        """Somebody was there until now."""
        self._idle_since = time.monotonic()

    def _look_later(self, idle_timeout_s: float) -> None:
        self._home.loop.call_later(min(idle_timeout_s, _LOOK_S), self._look)

    def _look(self) -> None:
        if self.idle_timeout_s is None:
            return
        if self._is_held():
            self.begin_anew()
        if time.monotonic() - self._idle_since >= self.idle_timeout_s:
            self._home.shut_down()
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

    def do_set_lease(self, message: Message, fields: dict[str, Any]) -> object:
        """Say after how long without client and running cell the mesh ends; the time begins anew."""
        had_none = not self.idle_timeout_s
        self.idle_timeout_s = fields["idle_timeout_s"]
        self.begin_anew()
        if had_none:
            self._look()
        self._home.journal.note(message.src, "command", source=f"%mesh lease {fields['idle_timeout_s']:g}s")
        return None
