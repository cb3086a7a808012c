"""What ran on a mesh: cells, calls, commands; one JSON object a line in `journal.jsonl`, only ever appended to.

An entry begins with one line and ends with another of the same number `n`; later lines add to earlier ones:

    {"n": 3, "kind": "cell", "who": "notebook a.ipynb (pid 71)", "when": 1760000000.0, "source": "x = 1", "ranks": "0-7", ...}
    {"n": 3, "ended": 1760000001.5, "status": "ok", "seconds": {"0": 1.4, ...}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

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
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._path = os.path.join(directory, FILE)
        self._max_entries = max_entries
        self.entries: dict[int, Entry] = {}
        self.when_dirty: Callable[[], None] | None = None
        """Called when lines wait to be written; who sets it calls `flush` soon. Without it they're written at once."""
        self._unwritten: list[Entry] = []
        self._next = 1
        self._fd = self._open()

    def _open(self, extra: int = 0) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | extra, 0o600)

    def begin(self, kind: str, **fields: Any) -> Entry:
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
        if not self._unwritten and self.when_dirty is not None:
            self.when_dirty()
        self._unwritten.append(dict(fields))
        if self.when_dirty is None:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        entries, self._unwritten = self._unwritten, []
        if entries and self._fd >= 0:
            os.write(self._fd, "".join(_encode(e) + "\n" for e in entries).encode())

    def _drop_older_half(self) -> None:
        numbers = sorted(self.entries)
        self.flush()
        dropped = [n for n in numbers[: len(numbers) // 2] if "ended" in self.entries[n]]
        for n in dropped:
            del self.entries[n]
        temporary = self._path + ".new"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.writelines(_encode(entry) + "\n" for entry in self.entries.values())
        os.close(self._fd)
        os.replace(temporary, self._path)
        self._fd = self._open()
        text = f"{len(dropped)} older entries were dropped: the journal keeps {self._max_entries}"
        note: Entry = {"n": self._next, "kind": "note", "text": text}
        self._next += 1
        self.entries[note["n"]] = note
        self._append(note)

    def close(self) -> None:
        """Close the file."""
        self.flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def move(self, directory: str) -> None:
        """Go on in another directory."""
        import shutil

        self.close()
        os.makedirs(directory, mode=0o700, exist_ok=True)
        path = os.path.join(directory, FILE)
        shutil.move(self._path, path)
        self._path = path
        self._fd = self._open()


def read(directory: str) -> list[Entry]:
    """Return the entries in a journal's directory, oldest first; a last line that was cut off is left out.

    Raises:
        FileNotFoundError: if there is no journal.
    """
    with open(os.path.join(directory, FILE)) as file:
        return merge(_parsed(file))


def _parsed(lines: Iterable[str]) -> Iterable[Entry]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def merge(lines: Iterable[Entry]) -> list[Entry]:
    """Return each entry once, with what later lines add to it.

    >>> merge([{"n": 1, "kind": "cell"}, {"n": 1, "status": "ok"}])
    [{'n': 1, 'kind': 'cell', 'status': 'ok'}]
    """
    found: dict[int, Entry] = {}
    for line in lines:
        found.setdefault(line["n"], {}).update(line)
    return list(found.values())
