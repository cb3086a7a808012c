"""Contents that have arrived but aren't in place yet: each under its sha256, and only once it is complete and
verified.

What is complete survives a crash, so a transfer goes on where it has ended.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from monarch_nb._workspace.below import FOLDER, new_file, open_file
from monarch_nb._workspace.entry import BadEntry, check_path, digest
from monarch_nb._workspace.packs import Packs

_PART = ".part"
COPY_BYTES = 1 << 20


class Staging:
    """The contents that have arrived for one folder. Used by one thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._begun: dict[str, tuple[int, Any]] = {}
        """Partially received files: number of bytes, and their hash so far."""
        self._packs = Packs(path)

    @contextmanager
    def open(self) -> Iterator[int]:
        """Open the staging folder, creating it if need be, and yield its descriptor."""
        os.makedirs(self.path, 0o700, exist_ok=True)
        fd = os.open(self.path, FOLDER)
        try:
            yield fd
        finally:
            os.close(fd)

    def has(self, content: str) -> bool:
        """Return whether a content has arrived completely."""
        return self._packs.has(content) or os.path.isfile(os.path.join(self.path, _checked(content)))

    def refresh(self) -> None:
        """Read the list of contents again, because another process may have removed some."""
        self._packs.refresh()

    def take_all(self, contents: Sequence[bytes], sender: str = "") -> None:
        """Store small, complete contents under the digests of their bytes."""
        with self.open() as at:
            self._packs.add(at, {digest(data): data for data in contents}, f"pack.{sender}{_PART}")

    def packed(self, at: int, content: str) -> bytes | None:
        """Return a content that is in a pack; None if it isn't. `at`: this folder, open."""
        return self._packs.read(at, content)

    def take_piece(self, content: str, offset: int, data: bytes, *, is_last: bool, sender: str = "") -> None:
        """Append a piece to a content; the pieces of each sender arrive in order.

        Raises:
            BadEntry: if they don't, or if the whole content doesn't match its name.
        """
        name = f"{_checked(content)}.{sender}{_PART}"
        with self.open() as at:
            fd = self._continue(at, name, offset)
            try:
                with open(fd, "wb") as file:
                    file.write(data)
            except OSError:
                self._drop(at, name)
                raise
            num, hashed = self._begun[name]
            hashed.update(data)
            self._begun[name] = num + len(data), hashed
            if is_last:
                self._complete(at, name, content)

    def _continue(self, at: int, name: str, offset: int) -> int:
        if not offset:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=at)
            self._begun[name] = 0, hashlib.sha256()
            return new_file(at, name)
        if self._begun.get(name, (-1, None))[0] != offset:
            raise BadEntry(f"a piece of {name[:12]} arrived out of order, at {offset}")
        return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)

    def _complete(self, at: int, name: str, content: str) -> None:
        _, hashed = self._begun.pop(name)
        if hashed.hexdigest() != content:
            os.unlink(name, dir_fd=at)
            raise BadEntry(
                f"the content received as {content[:12]} has another checksum: {hashed.hexdigest()[:12]}"
            )
        os.rename(name, content, src_dir_fd=at, dst_dir_fd=at)

    def _drop(self, at: int, name: str) -> None:
        self._begun.pop(name, None)
        with suppress(OSError):
            os.unlink(name, dir_fd=at)

    def read(self, content: str) -> bytes:
        """Return a whole content, by its sha256."""
        with self.open() as at:
            data = self.packed(at, content)
            if data is not None:
                return data
            with open(open_file(at, _checked(content)), "rb") as file:
                return file.read()

    def forget(self, content: str) -> None:
        """Remove a content, and the folder if that becomes empty."""
        with suppress(OSError):
            os.unlink(os.path.join(self.path, _checked(content)))
            os.rmdir(self.path)

    def copy_from(self, other: Staging, content: str) -> bool:
        """Copy a content that has arrived in another staging folder. Return False if it's gone or its bytes
        don't match.
        """
        with suppress(OSError):
            with other.open() as at:
                data = other.packed(at, content)
            if data is not None:
                self.take_all([data])
                return True
            with open(os.path.join(other.path, _checked(content)), "rb") as file:
                return self.copy_in(file.fileno(), content)
        return False

    def copy_in(self, source: int, content: str) -> bool:
        """Copy a content from an open file. Return False if the file's bytes don't match any more."""
        offset = 0
        while True:
            data = os.read(source, COPY_BYTES)
            try:
                self.take_piece(content, offset, data, is_last=not data)
            except BadEntry:
                return False
            if not data:
                return True
            offset += len(data)

    def clear(self) -> None:
        """Remove all contents and the folder."""
        self._begun.clear()
        self._packs.clear()
        shutil.rmtree(self.path, ignore_errors=True)


def _checked(content: str) -> str:
    if len(check_path(content)) != 1 or len(content) != 64:
        raise BadEntry(f"expected a sha256 of 64 digits, not {content!r}")
    return content


def hash_file(fd: int) -> str:
    """Return the sha256 of an open file's bytes from the current position on."""
    hashed = hashlib.sha256()
    while data := os.read(fd, COPY_BYTES):
        hashed.update(data)
    return hashed.hexdigest()
