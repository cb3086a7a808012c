"""Makes the library search paths of ELF files relative: absolute directories in their RPATH or RUNPATH become
relative to the file. Pure.

Layout after the "System V ABI" (generic part, chapters 4 and 5): 64-bit little-endian files only, as all
machines have that torch is built for.
The text is changed in place: `$ORIGIN/../lib` must not be longer than what it replaces.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from monarch_nb._sync.env.errors import EnvironmentSyncError

MAGIC = b"\x7fELF\x02\x01"
"""First bytes of 64-bit, little-endian files."""
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 5, 15, 29
_SEGMENT, _DYNAMIC = struct.Struct("<IIQQQQQQ"), struct.Struct("<qQ")


class ElfError(EnvironmentSyncError):
    """The error of a file that begins as an ELF file but isn't a valid one."""


class SearchPath(NamedTuple):
    """An RPATH or RUNPATH: where its text stands in the file, and the text."""

    offset: int
    text: bytes


def search_paths(content: bytes) -> list[SearchPath]:
    """Return a file's search paths; none if it's no ELF file of 64 bits.

    Raises:
        ElfError: if its headers point out of it.
    """
    if not content.startswith(MAGIC):
        return []
    try:
        return list(_search_paths(content))
    except (struct.error, ValueError, StopIteration) as error:
        raise ElfError(f"an ELF file with headers that point out of it: {error}") from None


def relative(content: bytes, path: str, roots: Mapping[str, str]) -> bytes:
    """Return a file with search paths that are relative to itself, where they lead into a layer.

    Args:
        path: of the file, below the prefix: `base/bin/python3.11`.
        roots: by layer, its directory on this machine; where a layer's libraries are is the same below any
            prefix.

    Raises:
        ElfError: if the headers are wrong, or a relative path doesn't fit.
    """
    changed = bytearray(content)
    for offset, text in search_paths(content):
        new = b":".join(_relative(part, path, roots) for part in text.split(b":"))
        if len(new) > len(text):
            raise ElfError(f"{path}: {os.fsdecode(new)!r} doesn't fit in place of {os.fsdecode(text)!r}")
        changed[offset : offset + len(text)] = new.ljust(len(text), b"\0")
    return bytes(changed)


def _relative(part: bytes, path: str, roots: Mapping[str, str]) -> bytes:
    folder = os.path.dirname(path)
    for layer, root in sorted(roots.items(), key=lambda item: -len(item[1])):
        start = os.fsencode(root)
        if part == start or part.startswith(start + b"/"):
            there = os.path.join(layer, os.fsdecode(part[len(start) + 1 :]))
            return b"$ORIGIN/" + os.fsencode(os.path.relpath(there, folder))
    return part


def _search_paths(content: bytes) -> Iterator[SearchPath]:
    (headers_at,) = struct.unpack_from("<Q", content, 32)
    size, num = struct.unpack_from("<HH", content, 54)
    segments = [_SEGMENT.unpack_from(content, headers_at + i * size) for i in range(num)]
    loaded = [
        (address, offset, length)
        for kind, _, offset, address, _, length, _, _ in segments
        if kind == _PT_LOAD
    ]
    for kind, _, offset, _, _, length, _, _ in segments:
        if kind == _PT_DYNAMIC:
            yield from _dynamic(content, offset, length, loaded)


def _dynamic(
    content: bytes, at: int, length: int, loaded: list[tuple[int, int, int]]
) -> Iterator[SearchPath]:
    if length < 0 or at + length > len(content):
        raise ValueError("the dynamic section ends behind the file")
    entries = [_DYNAMIC.unpack_from(content, at + i) for i in range(0, length - length % 16, 16)]
    strings = next((value for tag, value in entries if tag == _DT_STRTAB), None)
    if strings is None:
        return
    start = next(
        offset + strings - address for address, offset, size in loaded if address <= strings < address + size
    )
    for tag, value in entries:
        if tag in (_DT_RPATH, _DT_RUNPATH):
            end = content.index(b"\0", start + value)
            yield SearchPath(start + value, content[start + value : end])
