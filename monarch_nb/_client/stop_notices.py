"""Prints notices to stderr about ranks that stop at a breakpoint, where no prompt can be shown: in a script,
and in a notebook without the extension.

A script's own mesh has no name. So that `monarch-nb debug` finds it, a connection file under the program's
pid is there from its first stop on until it ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from monarch_nb._client import connection_file, launch, waiting
from monarch_nb._protocol.events import RankStopped
from monarch_nb._shape import name_ranks

if TYPE_CHECKING:
    from monarch_nb._client.session import Session

WINDOW_S = 0.2
"""Ranks that stop within this time are reported together."""


class StopNotices:
    """The printer of notices about ranks of one session's mesh that stop at breakpoints. `stopped` is called
    in the reading thread, `_print_stops` by the background reader.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._new: list[RankStopped] = []
        self._path = ""

    def stopped(self, stop: RankStopped) -> None:
        """Record a rank's stop at a breakpoint, and have it printed soon unless a cell shows the prompt."""
        if waiting.on_stop is not None:
            return  # a cell shows the prompt
        with self._lock:
            self._new.append(stop)
            if len(self._new) > 1:
                return
        self._session.transport.reader.call_at(time.monotonic() + WINDOW_S, self._print_stops)

    def _print_stops(self) -> None:
        with self._lock:
            stops, self._new = self._new, []
        places: dict[tuple[str, ...], list[int]] = {}
        for stop in stops:
            where = stop.where
            key = (where.file, str(where.line), where.function, where.text, where.what or where.thread)
            places.setdefault(key, []).append(stop.rank)
        lines = []
        for (file, line, function, text, what), ranks in places.items():
            stand = "stands" if len(ranks) == 1 else "stand"
            lines.append(
                f"{name_ranks(sorted(ranks))} {stand} at a breakpoint: {file}, line {line}, in "
                f"{function}: {text}  ({what})"
            )
        lines.append(f"debug with: monarch-nb debug {self._name()}   (in another terminal)")
        if sys.stderr is not None:
            print("\n".join(lines), file=sys.stderr, flush=True)

    def _name(self) -> str:
        connection = self._session.connection
        if connection is None or connection.name:
            return connection.name if connection is not None else ""
        if not self._path:
            with suppress(OSError):
                self._path = connection_file.write_program(
                    launch.runtime_directory(), os.getpid(), connection
                )
        return str(os.getpid())

    def close(self) -> None:
        """Remove the connection file that was written for `monarch-nb debug`: the program leaves."""
        if self._path:
            with suppress(OSError):
                os.unlink(self._path)
