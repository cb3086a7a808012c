"""The journal of a mesh: what was printed, what was done by whom, and what nobody has seen yet."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from monarch_nb._journal.entries import EntryLog
from monarch_nb._journal.output import OutputStore
from monarch_nb._wire.message import Message

if TYPE_CHECKING:
    from monarch_nb._host.home import HomeProcess


class JournalDesk:
    """Owned by the loop thread.

    Attributes:
        store: what was printed.
        entries: what was done.
    """

    def __init__(self, home: HomeProcess) -> None:
        self._home = home
        directory = os.path.join(home.directory, "journal")
        self.store = OutputStore(directory, **home.config.get("journal_limits", {}))
        self.entries = EntryLog(directory)
        self.entries.when_dirty = lambda: home.loop.call_shortly(self.entries.flush)
        self._missed_from: int | None = None

    def move(self, directory: str) -> None:
        """Keep everything at another place."""
        self.store.move(directory)
        self.entries.move(directory)

    def close(self) -> None:
        """Write out what there is."""
        self.store.close()
        self.entries.close()

    def is_alone(self) -> None:
        """Nobody sees what is printed from now on."""
        if self._missed_from is None:
            self._missed_from = self.store.end

    def note(self, client: int, kind: str, **fields: Any) -> None:
        """Enter a command, or an event, that is over already; `client` 0: nobody has asked for it."""
        now = time.time()
        who = self._home.clients.who(client) if client else "the host process"
        self.entries.begin(kind, who=who, **{"when": now, "ended": now, "status": "ok", **fields})

    def do_note(self, message: Message, fields: dict[str, Any]) -> object:
        """Enter what a client has done without the home: calls, pushes."""
        kind = fields.pop("kind")
        self.note(message.src, kind, env=self._home.environment_id, **fields)
        return None

    def do_history(self, message: Message, fields: dict[str, Any]) -> object:
        """Return the last entries, oldest first, and how much output was dropped."""
        entries = sorted(self.entries.entries.values(), key=lambda e: int(e["n"]))
        return {"entries": entries[-fields["limit"] :], "num_dropped_bytes": self.store.start}

    def do_entry(self, message: Message, fields: dict[str, Any]) -> object:
        """Return one entry, or None."""
        return self.entries.entries.get(fields["n"])

    def do_missed(self, message: Message, fields: dict[str, Any]) -> object:
        """Return what nobody has seen: cells, and from where in the journal on other output."""
        cells = [
            dict(e)
            for e in self.entries.entries.values()
            if e["kind"] == "cell" and not e.get("seen") and not self._home.cells.is_watched(e["n"])
        ]
        return {"cells": cells, "position": self._missed_from}

    def do_seen(self, message: Message, fields: dict[str, Any]) -> object:
        """A client has shown how cells ended, or what else was missed."""
        for n in fields.get("cells", ()):
            self.entries.add(n, seen=True)
        if fields.get("others"):
            self._missed_from = None
        return None
