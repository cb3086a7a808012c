"""Files of a notebook's workspace on this machine: what is here is compared and put in place by a thread of its own, so that the loop goes on meanwhile.

A transfer is a few requests of a client: hello (who are you, what have you got), pieces of what is missing, then all of it is put in place. Or a single
one, edit, if little has changed since.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb._host.request import LATER
from monarch_nb._wire.message import Message
from monarch_nb._wire.process import machine_id
from monarch_nb._workspace import entry as entries
from monarch_nb._workspace.answers import Hello, Whereabouts
from monarch_nb._workspace.placer import Placer, store_folder

if TYPE_CHECKING:
    from monarch_nb._host.process import HostProcess


class WorkspaceDesk:
    """Requests are taken by the loop's thread, and done by one other, in turn."""

    def __init__(self, process: HostProcess) -> None:
        self._process = process
        self._thread: ThreadPoolExecutor | None = None
        self._placers: dict[str, Placer] = {}

    def _later(self, message: Message, do: Callable[[], object]) -> object:
        """Do something in the thread, and answer."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "mnb-workspace")
        process = self._process

        def work() -> None:
            try:
                answer, failed = do(), False
            except Exception as error:  # whatever it is, who asks waits
                answer, failed = _reason(error, process.hostname), True
            process.loop.call_soon_threadsafe(lambda: process.reply(message.src, message.ref, answer, error=failed))

        self._thread.submit(work)
        return LATER

    def _placer(self, name: str) -> Placer:
        if name not in self._placers:
            self._placers[name] = Placer(store_folder(), name, f"{self._process.hostname}.{self._process.index}")
        return self._placers[name]

    def do_workspace_hello(self, message: Message, fields: dict[str, Any]) -> object:
        """Say whether this machine has the notebook's own files, and what else it has."""
        return self._later(message, lambda: self._hello(fields["where"]))

    def _hello(self, where: Whereabouts) -> Hello:
        placer, hostname = self._placer(where.name), self._process.hostname
        if sees_the_same(where):
            return Hello(True, where.root, "", 0, hostname)
        return Hello(False, placer.folder, placer.manifest(), placer.free_bytes(), hostname)

    def do_workspace_take(self, message: Message, fields: dict[str, Any]) -> object:
        """Take a piece of a content."""
        sender = f"{message.src:x}"

        def take() -> None:
            staging = self._placer(fields["name"]).staging
            staging.take(fields["content"], fields["offset"], fields["data"], is_last=fields["is_last"], sender=sender)

        return self._later(message, take)

    def do_workspace_look(self, message: Message, fields: dict[str, Any]) -> object:
        """Say what is lacking of a manifest, which has come as a content."""

        def look() -> object:
            placer = self._placer(fields["name"])
            manifest = entries.unpack(placer.staging.read(fields["manifest"]))
            found = placer.look(manifest, is_dry=fields["is_dry"])
            if fields["is_dry"]:
                placer.staging.forget(fields["manifest"])
            return found

        return self._later(message, look)

    def do_workspace_place(self, message: Message, fields: dict[str, Any]) -> object:
        """Have the folder be as a manifest says, all of which has come."""

        def place() -> object:
            placer = self._placer(fields["name"])
            return placer.place(entries.unpack(placer.staging.read(fields["manifest"])))

        return self._later(message, place)

    def do_workspace_edit(self, message: Message, fields: dict[str, Any]) -> object:
        """Make a few changes to a folder that is as a manifest says."""
        edit = fields["edit"]
        return self._later(message, lambda: self._placer(fields["name"]).edit(edit))

    def do_workspace_link(self, message: Message, fields: dict[str, Any]) -> object:
        """Make a link to the folder at the notebook's path."""
        return self._later(message, lambda: self._placer(fields["name"]).link_to(fields["path"]))


def files_id() -> str:
    """Return what two processes have in common that see the same files: the machine, as long as it runs, and the mount namespace."""
    try:
        return f"{machine_id()} {os.readlink('/proc/self/ns/mnt')}"
    except OSError:
        return ""


def sees_the_same(where: Whereabouts) -> bool:
    """Say whether this process sees the notebook's own files at their path."""
    if where.machine and where.machine == files_id():
        return True
    name, holds = where.token
    with suppress(OSError), open(os.path.join(where.root, name), encoding="ascii") as file:
        return bool(holds) and file.read(len(holds) + 1) == holds
    return False


def _reason(error: Exception, hostname: str) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"host {hostname}: {error.strerror}" + (f": {error.filename}" if error.filename else "")
    text = str(error)
    return f"host {hostname}: {text if isinstance(error, ValueError) else f'{type(error).__name__}: {text}'}"
