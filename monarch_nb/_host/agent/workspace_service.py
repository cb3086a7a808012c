"""The files of a notebook's workspace on this machine. A thread of its own compares them and puts them in
place, so that the loop isn't blocked.

A transfer is a few requests of a client: hello (who are you, what have you got), pieces of what is missing,
then all of it is put in place. Or a single one, edit, if little has changed since.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._wire.process import files_id
from monarch_nb._workspace import entry as entries
from monarch_nb._workspace.answers import (
    EditWorkspace,
    GreetWorkspace,
    Hello,
    Lacking,
    LinkWorkspace,
    LookAtWorkspace,
    Outcome,
    PlaceWorkspace,
    TakeContent,
    TakeContents,
    Whereabouts,
)
from monarch_nb._workspace.placer import Placer, store_folder

if TYPE_CHECKING:
    from monarch_nb._host.agent.process import HostProcess


class WorkspaceService:
    """The service that handles requests about workspaces. The loop's thread receives requests; one other
    thread handles them, in order.
    """

    def __init__(self, process: HostProcess) -> None:
        self._process = process
        self._thread: ThreadPoolExecutor | None = None
        self._placers: dict[str, Placer] = {}

    def _later(self, sender: Sender, do: Callable[[], object]) -> Later:
        """Run a task in the thread, and answer with its result."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "mnb-workspace")
        process = self._process

        def work() -> None:
            try:
                answer, failed = do(), False
            except Exception as error:  # any error must be answered: the asker waits
                answer, failed = _reason(error, process.hostname), True
            process.loop.call_soon_threadsafe(
                lambda: process.reply(sender.proc, sender.ref, answer, error=failed)
            )

        self._thread.submit(work)
        return LATER

    def _placer(self, name: str) -> Placer:
        if name not in self._placers:
            self._placers[name] = Placer(
                store_folder(), name, f"{self._process.hostname}.{self._process.index}"
            )
        return self._placers[name]

    @handles(GreetWorkspace)
    def do_greet_workspace(self, request: GreetWorkspace, sender: Sender) -> Hello | Later:
        """Say whether this machine has the notebook's own files, and describe its copy."""
        return self._later(sender, lambda: self._hello(request.where))

    def _hello(self, where: Whereabouts) -> Hello:
        placer, hostname = self._placer(where.name), self._process.hostname
        if sees_the_same(where):
            return Hello(True, where.root, "", 0, hostname)
        return Hello(False, placer.folder, placer.manifest(), placer.free_bytes(), hostname)

    @handles(TakeContent)
    def do_take_content(self, request: TakeContent, sender: Sender) -> Later | None:
        """Take a piece of a content."""

        def take() -> None:
            staging = self._placer(request.name).staging
            staging.take_piece(
                request.content,
                request.offset,
                request.data,
                is_last=request.is_last,
                sender=f"{sender.proc:x}",
            )

        return self._later(sender, take)

    @handles(TakeContents)
    def do_take_contents(self, request: TakeContents, sender: Sender) -> Later | None:
        """Take small contents."""
        return self._later(
            sender, lambda: self._placer(request.name).staging.take_all(request.contents, f"{sender.proc:x}")
        )

    @handles(LookAtWorkspace)
    def do_look_at_workspace(self, request: LookAtWorkspace, sender: Sender) -> Lacking | Later:
        """Return the contents that a manifest names and this host lacks; the manifest itself came as a
        content.
        """

        def look() -> object:
            placer = self._placer(request.name)
            manifest = entries.unpack(placer.staging.read(request.manifest))
            found = placer.look(manifest, is_dry=request.is_dry)
            if request.is_dry:
                placer.staging.forget(request.manifest)
            return found

        return self._later(sender, look)

    @handles(PlaceWorkspace)
    def do_place_workspace(self, request: PlaceWorkspace, sender: Sender) -> Outcome | Later:
        """Make the folder equal to a manifest all of whose contents have arrived."""

        def place() -> object:
            placer = self._placer(request.name)
            return placer.place(entries.unpack(placer.staging.read(request.manifest)))

        return self._later(sender, place)

    @handles(EditWorkspace)
    def do_edit_workspace(self, request: EditWorkspace, sender: Sender) -> Outcome | Later | None:
        """Make a few changes to a folder whose manifest is known."""
        return self._later(sender, lambda: self._placer(request.name).edit(request.edit))

    @handles(LinkWorkspace)
    def do_link_workspace(self, request: LinkWorkspace, sender: Sender) -> str | Later:
        """Make a link to the folder at the notebook's path."""
        return self._later(sender, lambda: self._placer(request.name).link_to(request.path))


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
