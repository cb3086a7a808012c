"""Makes files of the contents that have arrived on this host: each is written completely, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType

from monarch_nb._workspace.below import new_file, open_file, status
from monarch_nb._workspace.entry import Entry, Kind
from monarch_nb._workspace.staging import Staging

MODES = {Kind.FILE: 0o644, Kind.EXECUTABLE: 0o755}


class Arrived:
    """The arrived contents that one placing makes files of; used in a `with` statement.

    Args:
        wanted: the files that will be made, so that a content which several of them hold is kept for the
            last.
        given: contents that came with the request itself, verified, by their sha256.
    """

    def __init__(self, staging: Staging, wanted: Iterable[Entry], given: Mapping[str, bytes]) -> None:
        self._staging = staging
        self._given = given
        self._uses = Counter(each.content for each in wanted if not each.is_link)

    def __enter__(self) -> Arrived:
        self._opened = self._staging.open()
        self._at = self._opened.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    def put(self, entry: Entry, at: int, name: str) -> os.stat_result:
        """Write an entry's content as a file of an open folder; return the file's status.

        Raises:
            FileNotFoundError: if the content hasn't arrived.
            OSError: if it can't be written.
        """
        self._uses[entry.content] -= 1
        data = self._given.get(entry.content)
        if data is None:
            data = self._staging.packed(self._at, entry.content)
        if data is None:
            return self._move(entry, at, name)
        return self._write(data, entry, at, name)

    def _write(self, data: bytes, entry: Entry, at: int, name: str) -> os.stat_result:
        fresh = f"{entry.content}.new"
        with suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=self._at)
        with open(new_file(self._at, fresh), "wb", buffering=0) as file:
            file.write(data)
            os.fchmod(file.fileno(), MODES[entry.kind])
            os.utime(file.fileno(), ns=(entry.mtime_ns, entry.mtime_ns))
            found = os.fstat(file.fileno())
        os.rename(fresh, name, src_dir_fd=self._at, dst_dir_fd=at)
        return found

    def _move(self, entry: Entry, at: int, name: str) -> os.stat_result:
        source = entry.content
        found = status(self._at, source)
        if found is None or found.st_size != entry.size:
            raise FileNotFoundError(errno.ENOENT, "its content has not arrived: sync again")
        if self._uses[source]:  # another file has the same content
            source = f"{entry.content}.copy"
            _copy(self._at, entry.content, source)
        os.chmod(source, MODES[entry.kind], dir_fd=self._at)
        os.utime(source, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=self._at)
        os.rename(source, name, src_dir_fd=self._at, dst_dir_fd=at)
        return os.stat(name, dir_fd=at, follow_symlinks=False)


def _copy(at: int, source: str, beside: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=at)
    with open(open_file(at, source), "rb") as reads, open(new_file(at, beside), "wb") as writes:
        shutil.copyfileobj(reads, writes)
