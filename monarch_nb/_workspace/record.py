"""The record of the files placed in a folder, which tells a rank's edits from what a sync has written.

A file of JSON lines: later lines count. Before anything is renamed into place, it's noted what will be; so
after a crash in the middle, a file of either content is known to be ours. A line that wasn't finished is of
no effect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import asdict

_ID = "id"


class Placed(msgspec.Struct, frozen=True):
    """A file's state after it was placed.

    Attributes:
        content: as in the entry.
        size, mtime_ns, inode: status of the file after it was placed: every write changes one of them.
    """

    content: str
    size: int
    mtime_ns: int
    inode: int

    def is_as_placed(self, found: os.stat_result) -> bool:
        """Return whether the file is unchanged since it was placed."""
        return (found.st_size, found.st_mtime_ns, found.st_ino) == (self.size, self.mtime_ns, self.inode)


@dataclass
class Record:
    """The record of one folder.

    Attributes:
        placed: by path.
        pending: by path, the contents that interrupted placings were about to place.
        manifest: id of the manifest that the folder has completely; "" if there is none.
    """

    path: str
    placed: dict[str, Placed] = field(default_factory=dict)
    pending: dict[str, set[str]] = field(default_factory=dict)
    manifest: str = ""
    _read: tuple[int, int] = (0, 0)
    _num_lines: int = 0

    def refresh(self) -> None:
        """Read the record again if another process has changed it."""
        if self._identity() != self._read:
            self._load()

    def is_ours(self, path: str, content: str) -> bool:
        """Return whether a file's content was placed by a sync, or was about to be."""
        placed = self.placed.get(path)
        return content in self.pending.get(path, ()) or (placed is not None and content == placed.content)

    def will_place(self, contents: Mapping[str, str]) -> None:
        """Record the contents that are about to be placed, by path."""
        self.manifest = ""
        for path, content in contents.items():
            self.pending.setdefault(path, set()).add(content)
        self._append([{_ID: ""}, *({"path": path, "pending": content} for path, content in contents.items())])

    def has_placed(self, placed: Mapping[str, Placed], gone: Iterable[str], manifest: str) -> None:
        """Record the files that were placed or removed."""
        gone = list(gone)
        self.placed.update(placed)
        for path in gone:
            self.placed.pop(path, None)
        for path in (*placed, *gone):
            self.pending.pop(path, None)
        self.manifest = manifest
        lines: list[dict[str, object]] = [{"path": path, **asdict(each)} for path, each in placed.items()]
        self._append([*lines, *({"path": path} for path in gone), {_ID: manifest}])
        if self._num_lines > 4 * len(self.placed) + 1000:
            self._shorten()

    # --- the file

    def _load(self) -> None:
        self.placed.clear()
        self.pending.clear()
        self.manifest, self._num_lines = "", 0
        self._read = self._identity()
        with suppress(FileNotFoundError), open(self.path, encoding="ascii") as lines:
            for line in lines:
                self._num_lines += 1
                with suppress(
                    ValueError, TypeError, KeyError
                ):  # the last record, if the process was killed while writing
                    self._take_line(json.loads(line))

    def _take_line(self, line: dict[str, object]) -> None:
        if _ID in line:
            self.manifest = str(line[_ID])
            return
        path = str(line.pop("path"))
        if "pending" in line:
            self.pending.setdefault(path, set()).add(str(line["pending"]))
            return
        self.pending.pop(path, None)
        if line:
            self.placed[path] = Placed(**line)  # type: ignore[arg-type]
        else:
            self.placed.pop(path, None)

    def _append(self, lines: Iterable[Mapping[str, object]]) -> None:
        texts = [json.dumps(line) + "\n" for line in lines]
        with open(self.path, "a", encoding="ascii") as file:
            if self._num_lines and not self._ends_with_a_line():
                file.write("\n")
            file.writelines(texts)
        self._num_lines += len(texts)
        self._read = self._identity()

    def _ends_with_a_line(self) -> bool:
        with open(self.path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"

    def _shorten(self) -> None:
        """Rewrite the record without outdated lines."""
        beside = Record(f"{self.path}.new")
        with suppress(FileNotFoundError):
            os.unlink(beside.path)
        beside._append(
            [{"path": path, **asdict(each)} for path, each in self.placed.items()] + [{_ID: self.manifest}]
        )
        os.replace(beside.path, self.path)
        self._num_lines, self._read = beside._num_lines, self._identity()

    def _identity(self) -> tuple[int, int]:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_size
