"""Receives packs on a host: verifies each content before it enters the store."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from monarch_nb._sync.env.store import Store, WrongContent, full_or, write_all
from monarch_nb.mesh.shipping.packs import Pack, Slice


@dataclass
class _Partial:
    """Large content that comes in several packs."""

    path: str
    digest: Any = field(default_factory=hashlib.sha256)
    num_bytes: int = 0


class Receiver:
    """The receiver that puts packs into a store.

    Args:
        executable: by content, whether it's needed as an executable file, as a plain one, or both.
    """

    def __init__(self, store: Store, executable: Mapping[str, frozenset[bool]]) -> None:
        self._store = store
        self._executable = executable
        self._partial: dict[str, _Partial] = {}

    def take_pack(self, pack: Pack, memory: memoryview, sums: Sequence[int] = ()) -> list[str]:
        """Put a pack's contents into the store; return those that aren't what their names say.

        Each byte is hashed once, when it's written. If something is wrong, stretches of large content are
        left aside, so that the pack can come once more from elsewhere.

        Args:
            sums: of stretches of large content, by `sums_of` where they were read; empty: their ends tell.

        Raises:
            StoreFull: if there's no room.
        """
        placed = list(_blocks(pack, memory))
        stretches = [(each, block) for each, block in placed if each.length < each.size]
        wrong = [
            each.sha256
            for (each, block), expected in zip(stretches, sums, strict=False)
            if zlib.crc32(block) != expected
        ]
        wrong += self._wrong_of((each, block) for each, block in placed if each.length == each.size)
        return wrong or self._wrong_of(stretches)

    def _wrong_of(self, slices: Iterable[tuple[Slice, memoryview]]) -> list[str]:
        """Put slices into the store; return the contents that are wrong."""
        wrong = []
        for each, block in slices:
            try:
                self._take_slice(each, block)
            except WrongContent:
                wrong.append(each.sha256)
        return wrong

    def _take_slice(self, each: Slice, block: memoryview) -> None:
        if each.length == each.size:
            for is_executable in self._executable.get(each.sha256, frozenset((False,))):
                self._store.add(each.sha256, [block], is_executable=is_executable)
            return
        partial = self._partial.get(each.sha256)
        if each.offset == 0:
            partial = self._partial[each.sha256] = _Partial(self._store.new_file())
        if partial is None or partial.num_bytes != each.offset:
            raise WrongContent(f"{each.sha256[:12]}: a part of it is missing")
        self._append(partial, block, is_new=each.offset == 0)
        if each.is_last:
            self._finish(each.sha256)

    def _append(self, partial: _Partial, block: memoryview, *, is_new: bool) -> None:
        flags = (
            os.O_WRONLY
            | os.O_APPEND
            | os.O_NOFOLLOW
            | os.O_CLOEXEC
            | (os.O_CREAT | os.O_EXCL if is_new else 0)
        )
        try:
            fd = os.open(partial.path, flags, 0o600)
            try:
                write_all(fd, block)
            finally:
                os.close(fd)
        except OSError as error:
            raise full_or(error, self._store.root) from None
        partial.digest.update(block)
        partial.num_bytes += len(block)

    def _finish(self, sha256: str) -> None:
        partial = self._partial.pop(sha256)
        if partial.digest.hexdigest() != sha256:
            with suppress(OSError):
                os.unlink(partial.path)
            raise WrongContent(f"content that should be {sha256[:12]} is {partial.digest.hexdigest()[:12]}")
        first, *others = self._executable.get(sha256, frozenset((False,)))
        self._store.adopt(partial.path, sha256, is_executable=first)
        for is_executable in others:
            self._store.copy_mode(sha256, is_executable=is_executable)


def _blocks(pack: Pack, memory: memoryview) -> Iterator[tuple[Slice, memoryview]]:
    """Yield the slices of a pack, each with its bytes."""
    at = 0
    for each in pack.slices:
        yield each, memory[at : at + each.length]
        at += each.length


def sums_of(pack: Pack, memory: memoryview) -> tuple[int, ...]:
    """Return a checksum of each stretch of content that comes in several packs: its sha256 tells at its
    end.
    """
    return tuple(zlib.crc32(block) for each, block in _blocks(pack, memory) if each.length < each.size)
