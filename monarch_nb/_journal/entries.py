"""The journal's entries about what ran on a mesh: cells, calls, commands; one JSON object a line in
`journal.jsonl`, only ever appended to.

An entry begins with one line and ends with another of the same number `n`; later lines add to earlier ones:

    {"n": 3, "kind": "cell", "who": "notebook a.ipynb (pid 71)", "when": 1760000000.0, "source": "x = 1",
    "ranks": "0-7", ...} {"n": 3, "ended": 1760000001.5, "status": "ok", "seconds": {"0": 1.4, ...}}

A disk that can't be written to keeps nobody from anything: entries are in memory, and once `resume` works the
file is written anew, in whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from monarch_nb._journal.secrets import mask_all

FILE = "journal.jsonl"
MAX_ENTRIES = 10_000
"""Beyond this, the older half is dropped, with an entry that says so."""

Entry = dict[str, Any]
_encode = json.JSONEncoder(default=str).encode


class EntryLog:
    """The entries of a running mesh: in memory and on disk. One process writes.

    Args:
        directory: where the file is.
        max_entries: how many are kept.
    """

    def __init__(self, directory: str, max_entries: int = MAX_ENTRIES) -> None:
        self._path = os.path.join(directory, FILE)
        self._max_entries = max_entries
        self.entries: dict[int, Entry] = {}
        self.when_dirty: Callable[[], None] | None = None
        """Called when lines wait to be written; who sets it calls `flush` soon. Without it they're written
        at once.
        """
        self.is_paused = False
        """Whether nothing is written just now."""
        self.when_broken: Callable[[OSError], None] = lambda _error: None
        """Told why nothing is written any more."""
        self._unwritten: list[Entry] = []
        self._next = 1
        self._size = 0
        self._fd = -1
        self.problem: OSError | None = None
        """Why the file couldn't be opened at the beginning."""
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            self._open()
        except OSError as error:
            self.is_paused, self.problem = True, error

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._fd).st_size

    @property
    def directory(self) -> str:
        """Where the file is."""
        return os.path.dirname(self._path)

    def begin_entry(self, kind: str, **fields: Any) -> Entry:
        """Enter something new; return it with its number `n`."""
        entry: Entry = {"n": self._next, "kind": kind, **fields}
        self._next += 1
        self.entries[entry["n"]] = entry
        self._append(entry)
        if len(self.entries) > self._max_entries:
            self._drop_older_half()
        return entry

    def add(self, n: int, **fields: Any) -> None:
        """Add to an entry: how it ended, that it was seen."""
        entry = self.entries.get(n)
        if entry is not None:
            entry.update(fields)
            self._append({"n": n, **fields})

    def _append(self, fields: Entry) -> None:
        if self.is_paused:
            return
        if not self._unwritten and self.when_dirty is not None:
            self.when_dirty()
        self._unwritten.append(dict(fields))
        if self.when_dirty is None:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        entries, self._unwritten = self._unwritten, []
        if not entries or self._fd < 0:
            return
        try:
            self._write("".join(_encode(mask_all(e)) + "\n" for e in entries).encode())
        except OSError as error:
            self._break(error)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self._size += len(data)

    def _break(self, error: OSError) -> None:
        self.pause()
        self.when_broken(error)

    # --- pauses

    def pause(self) -> None:
        """Write nothing from now on; what has been written in part is cut off."""
        self.is_paused = True
        self._unwritten.clear()
        if self._fd >= 0:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            self._shut()

    def resume(self) -> None:
        """Write again: all that there is, for what is missing may be anywhere.

        Raises:
            OSError: if that still can't be done.
        """
        self._write_anew()
        self.is_paused = False

    def _write_anew(self) -> None:
        """Put a file with all entries in the place of the one that's there."""
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        temporary = self._path + ".new"
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.writelines(_encode(mask_all(entry)) + "\n" for entry in self.entries.values())
            os.replace(temporary, self._path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        self._shut()
        self._open()

    def drop_before(self, when: float) -> None:
        """Drop what had ended before then."""
        old = [n for n, entry in self.entries.items() if entry.get("ended", when) < when]
        for n in old:
            del self.entries[n]
        if old and not self.is_paused:
            try:
                self._write_anew()
            except OSError as error:
                self._break(error)

    def _drop_older_half(self) -> None:
        numbers = sorted(self.entries)
        self.flush()
        dropped = [n for n in numbers[: len(numbers) // 2] if "ended" in self.entries[n]]
        for n in dropped:
            del self.entries[n]
        if not self.is_paused:
            try:
                self._write_anew()
            except OSError as error:
                self._break(error)
        text = f"{len(dropped)} older entries were dropped: the journal keeps {self._max_entries}"
        note: Entry = {"n": self._next, "kind": "note", "text": text}
        self._next += 1
        self.entries[note["n"]] = note
        self._append(note)

    def close(self) -> None:
        """Close the file."""
        self.flush()
        self._shut()

    def _shut(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def move(self, directory: str) -> None:
        """Go on in another directory.

        Raises:
            OSError: if that can't be written there; then all stays where it was.
        """
        before, self._path = self._path, os.path.join(directory, FILE)
        try:
            self._write_anew()
        except OSError:
            self._path = before
            raise
        self._unwritten.clear()
        with suppress(OSError):
            os.unlink(before)


def read(directory: str) -> list[Entry]:
    """Return the entries in a journal's directory, oldest first; a last line that was cut off is left out.

    Raises:
        FileNotFoundError: if there is no journal.
    """
    with open(os.path.join(directory, FILE), errors="replace") as file:
        return merge(_parsed(file))


def _parsed(lines: Iterable[str]) -> Iterable[Entry]:
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and isinstance(entry.get("n"), int):
            yield entry


def merge(lines: Iterable[Entry]) -> list[Entry]:
    """Return each entry once, with what later lines add to it.

    >>> merge([{"n": 1, "kind": "cell"}, {"n": 1, "status": "ok"}])
    [{'n': 1, 'kind': 'cell', 'status': 'ok'}]
    """
    found: dict[int, Entry] = {}
    for line in lines:
        found.setdefault(line["n"], {}).update(line)
    return list(found.values())
