"""Caches the hashes of files: a row for each inode, in SQLite.

A row counts while size and modification time are equal, and the inode's change time, too, if the number of
links is: making one more uv environment links all files of the others once more, which changes their change
time and nothing else. Files that were modified within two seconds before they were read aren't entered:
another write might leave the same time.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import NamedTuple

RACY_NS = 2_000_000_000
MAX_ROWS = 2_000_000
_SCHEMA = """create table if not exists content(
    dev integer, ino integer, treatment text, size integer, mtime integer, ctime integer, nlink integer,
    sent_size integer, is_template integer, sha256 text, primary key(dev, ino, treatment)) without rowid"""


class Content(NamedTuple):
    """The content of a file as it is sent.

    Attributes:
        size: bytes that are sent.
        is_template: whether the content is a template.
        sha256: digest of the sent bytes.
    """

    size: int
    is_template: bool
    sha256: str


class _Row(NamedTuple):
    size: int
    mtime_ns: int
    ctime_ns: int
    nlink: int
    content: Content


class HashCache:
    """A cache of contents by inode and treatment. A cache that can't be read or written is empty, and is left
    alone.

    Args:
        path: of the database; made, with its directory, if it isn't there.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows: dict[tuple[int, int, str], _Row] = {}
        self._new: dict[tuple[int, int, str], _Row] = {}
        self._now_ns = time.time_ns()

    def load(self, devices: Iterable[int]) -> None:
        """Read the cached contents of files on these devices."""
        with suppress(sqlite3.Error, OSError):
            with closing(self._open()) as database:
                for device in set(devices):
                    rows = database.execute(
                        "select ino, treatment, size, mtime, ctime, nlink, sent_size, is_template, sha256"
                        " from content where dev=?",
                        (device,),
                    )
                    for ino, treatment, size, mtime, ctime, nlink, sent, is_template, sha in rows:
                        self._rows[device, ino, treatment] = _Row(
                            size, mtime, ctime, nlink, Content(sent, bool(is_template), sha)
                        )

    def get(self, info: os.stat_result, treatment: str) -> Content | None:
        """Return the content of a file with this status, if the cache has it."""
        row = self._rows.get((info.st_dev, info.st_ino, treatment))
        if row is None or row.size != info.st_size or row.mtime_ns != info.st_mtime_ns:
            return None
        return row.content if row.ctime_ns == info.st_ctime_ns or row.nlink != info.st_nlink else None

    def put(self, info: os.stat_result, treatment: str, content: Content) -> None:
        """Record the content that a file is sent as; one that was changed a moment ago is left out."""
        if info.st_mtime_ns < self._now_ns - RACY_NS and info.st_ctime_ns < self._now_ns - RACY_NS:
            row = _Row(info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_nlink, content)
            self._new[info.st_dev, info.st_ino, treatment] = row

    def save(self) -> None:
        """Write the entries that are new."""
        if not self._new:
            return
        rows = [(*key, *row[:4], *row.content) for key, row in self._new.items()]
        with suppress(sqlite3.Error, OSError):
            with closing(self._open()) as database, database:
                if database.execute("select count(*) from content").fetchone()[0] > MAX_ROWS:
                    database.execute("delete from content")
                database.executemany("insert or replace into content values(?,?,?,?,?,?,?,?,?,?)", rows)
        self._rows.update(self._new)
        self._new.clear()

    def _open(self) -> sqlite3.Connection:
        os.makedirs(os.path.dirname(self._path), 0o700, exist_ok=True)
        database = sqlite3.connect(self._path, timeout=5.0)
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=off")
        database.execute(_SCHEMA)
        return database
