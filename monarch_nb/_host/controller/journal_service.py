"""The journal of a mesh: the output of ranks, the actions of programs, and which of these nobody has seen
yet.

When its disk is full, or can't be written to for another reason, the mesh goes on without: programs are told,
once, and told again when it's kept again.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from monarch_nb._host.controller.exits import Exited
from monarch_nb._journal.disk import check_room, why
from monarch_nb._journal.entries import EntryLog
from monarch_nb._journal.output import OutputStore
from monarch_nb._journal.retention import KEEP_S, set_keep_s
from monarch_nb._journal.secrets import is_unlogged, logged_source
from monarch_nb._protocol.events import Notice
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.journal import (
    GetEntry,
    GetHistory,
    GetMissed,
    JournalEntry,
    JournalPart,
    JournalSettings,
    Note,
    Seen,
    SetJournal,
    Unseen,
)
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._protocol.states import CellStatus, EntryKind
from monarch_nb._shape import format_ranks
from monarch_nb._units import size_text
from monarch_nb.exceptions import describe_end

if TYPE_CHECKING:
    from monarch_nb._host.controller.cells import Cells
    from monarch_nb._host.controller.clients import ClientService
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.controller.status_publisher import StatusPublisher
    from monarch_nb._host.loop import Loop

DROP_S = 3600.0
"""Interval at which expired entries are dropped."""
RETRY_S = 1.0
MAX_RETRY_S = 60.0
"""Maximum time until the disk is tried again; the time doubles after each failure."""


class Parts(Protocol):
    """The parts of a controller that this module uses."""

    cells: Cells
    clients: ClientService
    directory: str
    environment_id: str
    loop: Loop
    name: str
    registry: Registry
    status_publisher: StatusPublisher


class JournalService:
    """The service that keeps the journal, or knows why it can't. Owned by the loop thread.

    Attributes:
        store: the output of ranks.
        entries: the entries about what ran.
        trouble: why nothing is written at present; empty if everything is.
    """

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        directory = os.path.join(controller.directory, "journal")
        self.store = OutputStore(directory)
        self.entries = EntryLog(directory)
        self.entries.when_dirty = lambda: controller.loop.call_shortly(self.entries.flush)
        self._missed_from: int | None = None
        self.trouble = ""
        self.is_off = False
        self._place = directory
        self._since = 0.0
        self._retry_s = RETRY_S
        self._back_at = -MAX_RETRY_S
        controller.loop.call_later(DROP_S, self._drop_old_again)
        self.store.when_broken = self.entries.when_broken = self._broken
        if self.entries.problem is not None:
            controller.loop.call_later(0.0, partial(self._broken, self.entries.problem))

    def move(self, directory: str) -> None:
        """Move everything to another directory, as soon as that can be written to."""
        self._place = directory
        if self.trouble:
            return
        try:
            self._go_there()
        except OSError as error:
            self._broken(error)

    def _go_there(self) -> None:
        for part in (self.store, self.entries):
            if part.directory != self._place:
                part.move(self._place)

    # --- a disk that can't be written to

    def _broken(self, error: OSError) -> None:
        """Continue without writing, and try again from time to time."""
        if self.trouble:
            return
        self.trouble, self._since = why(error, self._place), time.time()
        for part in (self.store, self.entries):
            if not part.is_paused:
                part.pause()
        relapsed = time.monotonic() - self._back_at < MAX_RETRY_S
        self._retry_s = min(MAX_RETRY_S, 2 * self._retry_s) if relapsed else RETRY_S
        self._controller.loop.call_later(self._retry_s, self._try_again)
        self._tell(self.notice)

    @property
    def notice(self) -> str:
        """The warning to people while nothing is kept; empty if all is."""
        if self.is_off:
            return (
                f"the journal of mesh {self._controller.name!r} is off: what cells print isn't kept. Turn "
                "it on: %mesh set journal on"
            )
        return self.trouble and (
            f"the journal of mesh {self._controller.name!r} can't be written: {self.trouble}. Cells "
            "run on and show what they print, but nothing is kept of it. Make room; the journal goes "
            "on by itself"
        )

    def _try_again(self) -> None:
        if self.is_off or not self.trouble:
            return
        try:
            check_room(_existing(self._place))
            self._go_there()
            missing = (
                f"{size_text(self.store.num_unkept_bytes)} of output from {_clock(self._since)} to "
                f"{_clock(time.time())} were not kept: {self.trouble}"
            )
            self.store.resume(missing + "\n")
            self.entries.resume()
        except OSError as error:
            self.trouble = why(error, self._place)
            if not self.store.is_paused:
                self.store.pause()
            self._controller.loop.call_later(self._retry_s, self._try_again)
            return
        self.trouble, self._back_at = "", time.monotonic()
        self.note(0, JournalEntry(EntryKind.NOTE, text=missing))
        if self.store.max_age_s != KEEP_S:
            self._keep_for(self.store.max_age_s)
        self._tell(f"the journal of mesh {self._controller.name!r} is written again; {missing}")

    # --- what is kept, and how long

    def is_unlogged(self, n: int) -> bool:
        """Say whether a cell is excluded from the journal."""
        entry = self.entries.entries.get(n)
        return entry is not None and entry.nolog

    @handles(SetJournal)
    def do_set_journal(self, request: SetJournal, sender: Sender) -> JournalSettings:
        """Turn the journal off or on, or set for how many seconds it's kept; None leaves a setting unchanged.
        Returns the present settings.
        """
        if request.off is not None and request.off != self.is_off:
            self._turn_off() if request.off else self._turn_on()
        if request.keep_s is not None:
            self._keep_for(request.keep_s)
        return JournalSettings(self.is_off, self.store.max_age_s, self.store.directory, self.trouble)

    def _turn_off(self) -> None:
        self.is_off, self.trouble, self._since = True, "it was turned off (%mesh set journal on)", time.time()
        self.store.pause()
        self.entries.pause()
        self._controller.status_publisher.touch()

    def _turn_on(self) -> None:
        self.is_off = False
        self._try_again()

    def _keep_for(self, seconds: float) -> None:
        """Set the retention time: while the mesh runs, and of its directory after that."""
        self.store.max_age_s = seconds
        self._drop_old()
        try:
            set_keep_s(self.store.directory, seconds)
        except OSError as error:
            self._broken(error)

    def _drop_old(self) -> None:
        self.store.drop_old()
        self.entries.drop_before(time.time() - self.store.max_age_s)

    def _drop_old_again(self) -> None:
        self._controller.loop.call_later(DROP_S, self._drop_old_again)
        self._drop_old()

    def _tell(self, text: str) -> None:
        self._controller.status_publisher.touch()
        self._controller.clients.tell_listeners(Notice("", text))

    def close(self) -> None:
        """Write out all pending data."""
        self.store.close()
        self.entries.close()

    def is_alone(self) -> None:
        """Record that nobody sees output from now on."""
        if self._missed_from is None:
            self._missed_from = self.store.end

    def note(self, client: int, entry: JournalEntry) -> None:
        """Enter a command, or an event, that is over already; `client` 0: no program has requested it. What
        the entry doesn't say: it's just now, and all is well.
        """
        now = time.time()
        self.entries.begin_entry(
            replace(
                entry,
                who=self._controller.clients.who(client) if client else "the host process",
                when=entry.when or now,
                ended=now,
                status=CellStatus.OK if entry.status == CellStatus.RUNNING else entry.status,
                source=logged_source(entry.source),
                nolog=is_unlogged(entry.source),
            )
        )

    def rank_exited(self, exited: Exited) -> None:
        """Enter a loss; an intended end isn't one."""
        if exited.is_loss:
            end = exited.end
            entry = JournalEntry(
                EntryKind.LOST, text=self._loss(end), ranks=format_ranks([end.rank]), status=CellStatus.LOST,
                end=replace(end, last_lines=""),
            )  # fmt: skip
            self.note(0, entry)

    def _loss(self, end: RankExit) -> str:
        """Return the loss of a rank in one line."""
        mesh = self._controller.registry.mesh
        is_mesh = mesh is not None and mesh.group == end.group
        where = f"mesh {self._controller.name!r}" if is_mesh else end.group
        return f"rank {end.rank} of {where} {describe_end(end).splitlines()[0].removeprefix('the process ')}"

    @handles(Note)
    def do_note(self, request: Note, sender: Sender) -> None:
        """Enter actions of a client that needed no controller: calls, pushes."""
        self.note(sender.proc, replace(request.entry, env=self._controller.environment_id))

    @handles(GetHistory)
    def do_history(self, request: GetHistory, sender: Sender) -> JournalPart:
        """Return the last entries, oldest first, how much output was dropped, and why nothing is written at
        present, if so.
        """
        entries = sorted(self.entries.entries.values(), key=lambda entry: entry.n)
        return JournalPart(entries[-request.limit :], self.store.start, self.trouble, self.store.max_age_s)

    @handles(GetEntry)
    def do_entry(self, request: GetEntry, sender: Sender) -> JournalEntry | None:
        """Return one entry, or None."""
        return self.entries.entries.get(request.n)

    @handles(GetMissed)
    def do_missed(self, request: GetMissed, sender: Sender) -> Unseen:
        """Return the cells that nobody has seen, and the journal position after which other output is
        unseen.
        """
        cells = [
            each
            for each in self.entries.entries.values()
            if each.kind == EntryKind.CELL and not each.seen and not self._controller.cells.is_watched(each.n)
        ]
        return Unseen(cells, self._missed_from)

    @handles(Seen)
    def do_seen(self, request: Seen, sender: Sender) -> None:
        """Record that a client has shown how cells ended, or other missed output."""
        for n in request.cells:
            entry = self.entries.entries.get(n)
            if entry is not None:
                self.entries.change(replace(entry, seen=True))
        if request.others:
            self._missed_from = None


def _existing(path: str) -> str:
    """Return the nearest existing directory: a path or one of its parents."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _clock(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))
