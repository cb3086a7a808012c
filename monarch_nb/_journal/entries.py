"""The journal's entries about cells, calls and commands: one JSON object per line of `journal.jsonl`, which
is only appended to.

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

from msgspec import to_builtins
from msgspec.structs import replace

from monarch_nb._journal.secrets import mask_all
from monarch_nb._protocol.base import Plain
from monarch_nb._protocol.journal import JournalEntry
from monarch_nb._protocol.states import EntryKind

FILE = "journal.jsonl"
MAX_ENTRIES = 10_000
"""Beyond this, the older half is dropped, with an entry that says so."""

Line = dict[str, Plain]
"""A line of the file: an entry, or some fields of one."""
_FIELDS = JournalEntry.__struct_fields__


class EntryLog:
    """The journal entries of a running mesh, in memory and on disk. One process writes.

    Args:
        directory: where the file is.
        max_entries: how many are kept.
    """

    def __init__(self, directory: str, max_entries: int = MAX_ENTRIES) -> None:
        self._path = os.path.join(directory, FILE)
        self._max_entries = max_entries
        self.entries: dict[int, JournalEntry] = {}
        self.when_dirty: Callable[[], None] | None = None
        """Called when lines wait to be written; the callback schedules `flush`. Without it they are written
        at once.
        """
        self.is_paused = False
        """Whether writing is paused."""
        self.when_broken: Callable[[OSError], None] = lambda _error: None
        """Called with the error when nothing is written any more."""
        self._unwritten: list[JournalEntry | Line] = []
        self._next = 1
        self._size = 0
        self._fd = -1
        self.problem: OSError | None = None
        """The error of opening the file at the beginning."""
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
        """Directory of the file."""
        return os.path.dirname(self._path)

    def begin_entry(self, entry: JournalEntry) -> JournalEntry:
        """Add an entry; return it with its number."""
        entry = self._number(entry)
        if len(self.entries) > self._max_entries:
            self._drop_older_half()
        return entry

    def _number(self, entry: JournalEntry) -> JournalEntry:
        entry = replace(entry, n=self._next)
        self._next += 1
        self.entries[entry.n] = entry
        self._append(entry)
        return entry

    def change(self, entry: JournalEntry) -> None:
        """Replace the entry of the same number, if that still exists, for example by one that has ended or
        was seen. The file gets the changed fields.
        """
        before = self.entries.get(entry.n)
        if before is not None:
            self.entries[entry.n] = entry
            values = ((name, getattr(entry, name)) for name in _FIELDS)
            changed = {name: value for name, value in values if value is not getattr(before, name)}
            self._append({"n": entry.n, **changed})

    def _append(self, line: JournalEntry | Line) -> None:
        if self.is_paused:
            return
        if not self._unwritten and self.when_dirty is not None:
            self.when_dirty()
        self._unwritten.append(line)
        if self.when_dirty is None:
            self.flush()

    def flush(self) -> None:
        """Write the waiting entries."""
        lines, self._unwritten = self._unwritten, []
        if not lines or self._fd < 0:
            return
        try:
            self._write("".join(map(_text, lines)).encode())
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
        """Stop writing; a partially written line is cut off."""
        self.is_paused = True
        self._unwritten.clear()
        if self._fd >= 0:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            self._shut()

    def resume(self) -> None:
        """Resume writing: everything is rewritten, since any line may be missing.

        Raises:
            OSError: if that still can't be done.
        """
        self._write_anew()
        self.is_paused = False

    def _write_anew(self) -> None:
        """Replace the file by one with all entries."""
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        temporary = self._path + ".new"
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.writelines(map(_text, self.entries.values()))
            os.replace(temporary, self._path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        self._shut()
        self._open()

    def drop_before(self, when: float) -> None:
        """Drop entries that ended before a time."""
        old = [n for n, each in self.entries.items() if each.ended is not None and each.ended < when]
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
        dropped = [n for n in numbers[: len(numbers) // 2] if self.entries[n].ended is not None]
        for n in dropped:
            del self.entries[n]
        if not self.is_paused:
            try:
                self._write_anew()
            except OSError as error:
                self._break(error)
        text = f"{len(dropped)} older entries were dropped: the journal keeps {self._max_entries}"
        self._number(JournalEntry(EntryKind.NOTE, text=text))

    def close(self) -> None:
        """Close the file."""
        self.flush()
        self._shut()

    def _shut(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def move(self, directory: str) -> None:
        """Continue in another directory.

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


def _text(line: JournalEntry | Line) -> str:
    """Return a line of the file, with probable secrets masked."""
    return json.dumps(mask_all(to_builtins(line))) + "\n"


def read(directory: str) -> list[JournalEntry]:
    """Return the entries in a journal's directory, oldest first; an incomplete last line is left out.

    Raises:
        FileNotFoundError: if there is no journal.
    """
    with open(os.path.join(directory, FILE), errors="replace") as file:
        found = map(JournalEntry.read, merge(_parsed(file)))
        return [entry for entry in found if entry is not None]


def _parsed(lines: Iterable[str]) -> Iterable[Line]:
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and isinstance(found.get("n"), int):
            yield found


def merge(lines: Iterable[Line]) -> list[Line]:
    """Merge lines of the same entry, in order.

    >>> merge([{"n": 1, "kind": "cell"}, {"n": 1, "status": "ok"}])
    [{'n': 1, 'kind': 'cell', 'status': 'ok'}]
    """
    found: dict[int, Line] = {}
    for line in lines:
        found.setdefault(line["n"], {}).update(line)
    return list(found.values())
