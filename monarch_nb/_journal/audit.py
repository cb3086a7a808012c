"""Records who did what with a mesh, and which requests were refused: in memory, and in a file beside the
journal that only its user can read.

Both are bounded, whatever somebody does: what the same program does again and again is one row that counts,
and the oldest rows go.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

from msgspec import convert
from msgspec.structs import asdict, replace

from monarch_nb._protocol.roles import AuditRow, Role

FILE = "audit.jsonl"
MAX_ROWS = 1000
MAX_BYTES = 1 << 20
"""Maximum size of the file; the rows in memory take less than half."""
MAX_DETAIL = 80
MAX_WHO = 120
_ALIKE_AMONG = 16
"""Number of last rows with which a new one may be merged."""


class Audit:
    """The writer of the audit's rows, in memory and on disk. Owned by the loop thread.

    Args:
        directory: returns the directory of the file, which may change when a mesh gets its name. "": nothing
            is written for now.
        later: schedules a callback within some milliseconds: the writing.
    """

    def __init__(self, directory: Callable[[], str], later: Callable[[Callable[[], None]], None]) -> None:
        self._directory, self._later = directory, later
        self._rows: deque[AuditRow] = deque(maxlen=MAX_ROWS)
        self._unwritten: list[AuditRow] = []
        self._path, self._size = "", 0
        self._is_due = False

    def note(self, key: str, role: Role, who: str, what: str, *, detail: str = "", refused: str = "") -> None:
        """Enter a request into the audit."""
        now = time.time()
        row = AuditRow(
            now,
            now,
            key,
            role,
            who[:MAX_WHO],
            what.replace("_", " ")[:MAX_DETAIL],
            detail[:MAX_DETAIL],
            refused,
        )
        if not self._counted(row):
            self._rows.append(row)
            self._unwritten.append(row)
            self._write_soon()

    def _counted(self, row: AuditRow) -> bool:
        """Count a row as a repetition of an existing one; the file has the count when it's rewritten."""
        for back in range(1, min(_ALIKE_AMONG, len(self._rows)) + 1):
            known = self._rows[-back]
            if _same(known) == _same(row):
                self._rows[-back] = replace(known, until=row.until, times=known.times + 1)
                return True
        return False

    def last(self, limit: int) -> list[AuditRow]:
        """Return the last rows, oldest first."""
        return list(islice(self._rows, max(0, len(self._rows) - limit), None))

    # --- the file

    def _write_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._later(self._write)

    def _write(self) -> None:
        """Append new rows; errors of the disk are ignored."""
        self._is_due = False
        directory = self._directory()
        if not directory:
            del self._unwritten[:-MAX_ROWS]
            return
        rows, self._unwritten = self._unwritten, []
        with suppress(OSError):
            path = os.path.join(directory, FILE)
            if path != self._path or self._size > MAX_BYTES:
                self._write_anew(path)
            else:
                self._append(rows)

    def _append(self, rows: list[AuditRow]) -> None:
        data = _lines(rows)
        with open(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
            file.write(data)
        self._size += len(data)

    def _write_anew(self, path: str) -> None:
        before, temporary = self._path, f"{path}.new"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_lines(self._rows))
            self._size = file.tell()
        os.replace(temporary, path)
        self._path = path
        if before and before != path:
            with suppress(OSError):
                os.unlink(before)

    def close(self) -> None:
        """Write everything, with the counts."""
        if self._rows and (directory := self._directory()):
            with suppress(OSError):
                self._write_anew(os.path.join(directory, FILE))


def _same(row: AuditRow) -> tuple[Any, ...]:
    return row.key, row.role, row.who, row.what, row.detail, row.refused


def _lines(rows: Any) -> bytes:
    return "".join(json.dumps(asdict(row), ensure_ascii=True) + "\n" for row in rows).encode()


def read(directory: str, limit: int) -> list[AuditRow]:
    """Return the last rows of a mesh that has ended, oldest first."""
    rows: deque[AuditRow] = deque(maxlen=limit)
    with suppress(OSError), open(os.path.join(directory, FILE), errors="replace") as file:
        for line in file:
            with suppress(ValueError):
                rows.append(convert(json.loads(line), AuditRow))
    return list(rows)
