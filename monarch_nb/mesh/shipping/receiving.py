"""Receives packs on a host: verifies each content before it enters the store."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
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

    @staticmethod
    def check(pack: Pack, memory: memoryview, sums: Sequence[int]) -> list[str]:
        """Return the contents of a pack that aren't what was sent, before any of it is written.

        Args:
            sums: of stretches of large content, by `sums_of` where they were read; empty: their ends tell.
        """
        at, wrong, left = 0, [], iter(sums)
        for each in pack.slices:
            block = memory[at : at + each.length]
            at += each.length
            if each.length == each.size:
                is_right = hashlib.sha256(block).hexdigest() == each.sha256
            else:
                is_right = not sums or zlib.crc32(block) == next(left)
            if not is_right:
                wrong.append(each.sha256)
        return wrong

    def store_pack(self, pack: Pack, memory: memoryview) -> list[str]:
        """Put a pack's contents into the store; return those that aren't what their names say.

        Raises:
            StoreFull: if there's no room.
        """
        at, wrong = 0, []
        for each in pack.slices:
            block = memory[at : at + each.length]
            at += each.length
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


def sums_of(pack: Pack, memory: memoryview) -> tuple[int, ...]:
    """Return a checksum of each stretch of content that comes in several packs: its sha256 tells at its
    end.
    """
    at, sums = 0, []
    for each in pack.slices:
        if each.length < each.size:
            sums.append(zlib.crc32(memory[at : at + each.length]))
        at += each.length
    return tuple(sums)
