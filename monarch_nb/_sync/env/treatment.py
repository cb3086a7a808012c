"""Prepares files for sending: unchanged, or made independent of their location. Files are read and treated
only here.

The bytes that are hashed for a manifest and those that are sent later are made by the same function, so that
they agree.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from monarch_nb._sync.env import bytecode, elf, meson_loader, templates
from monarch_nb._sync.env.cache import Content

RAW, BYTE_CODE, PREFIX, LOADER = "", "pyc", "prefix", "loader"
MAX_TEXT_BYTES = 16 << 20
"""Larger files aren't searched for paths, unless they're ELF files."""
STALE = Content(0, False, "")
"""The content of a file that isn't sent."""
_BLOCK_BYTES = 1 << 20
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


class Source(NamedTuple):
    """A file of this machine, and how it is prepared for sending.

    Attributes:
        file: its path.
        path: where it goes, below a prefix.
        treatment: RAW, BYTE_CODE, PREFIX or LOADER.
        placeholder: for PREFIX: what stood in the conda package where the prefix is now.
        is_text: whether that is a text.
        origin: for BYTE_CODE: modification time in s and size of its source.
    """

    file: str
    path: str
    treatment: str = RAW
    placeholder: str = ""
    is_text: bool = True
    origin: tuple[int, int] = (0, 0)


class Treated(NamedTuple):
    """The content of a file as it is sent, and whether that's a template."""

    content: bytes
    is_template: bool


@dataclass(frozen=True)
class Treater:
    """The reader of files, which applies their treatment.

    Attributes:
        roots: by layer, its directory here.
    """

    roots: Mapping[str, str]

    @cached_property
    def _name(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self.roots.items())).encode()).hexdigest()[:16]

    def key(self, source: Source) -> str:
        """Return the inputs of a result besides the file, as the cache needs them."""
        if source.treatment == BYTE_CODE:
            return f"{BYTE_CODE} {source.origin[0]} {source.origin[1]}"
        if source.treatment == RAW:
            return RAW
        if source.treatment == LOADER:  # depends also on files that were built since
            return f"{LOADER} {self._name} {hashlib.sha256(self.read(source).content).hexdigest()}"
        placeholder = hashlib.sha256(source.placeholder.encode()).hexdigest()[:8]
        return f"{PREFIX} {self._name} {source.path} {placeholder}"

    def read(self, source: Source) -> Treated:
        """Return the content of a source as it is sent.

        Raises:
            OSError: if the file can't be read.
        """
        with open(source.file, "rb") as file:
            content = file.read()
        if source.treatment == BYTE_CODE:
            return Treated(bytecode.normalised(content), False)
        if source.treatment == LOADER:
            content = meson_loader.plain_loader(content.decode("utf-8", "surrogateescape"))
            template = templates.cut_text(content, self.roots)
            return Treated(content, False) if template is None else Treated(template, True)
        return (
            self._without_prefix(source, content) if source.treatment == PREFIX else Treated(content, False)
        )

    def read_slice(self, source: Source, offset: int, view: memoryview) -> int:
        """Put a stretch of what goes into memory; return how many bytes there were.

        Raises:
            OSError: if the file can't be read.
        """
        if source.treatment == RAW:
            return _read_at(source.file, offset, view)
        content = self.read(source).content[offset : offset + len(view)]
        view[: len(content)] = content
        return len(content)

    def hash(self, source: Source) -> Content:
        """Return name and size of what goes: `STALE` for byte code of a source that has changed since.

        Raises:
            OSError: if the file can't be read.
        """
        if source.treatment == BYTE_CODE and not _is_current(source):
            return STALE
        if source.treatment == RAW or (source.treatment == PREFIX and _is_large_and_no_elf(source.file)):
            return _hash_file(source.file)
        content, is_template = self.read(source)
        return Content(len(content), is_template, hashlib.sha256(content).hexdigest())

    def _without_prefix(self, source: Source, content: bytes) -> Treated:
        if source.path.endswith(".dist-info/direct_url.json"):
            content = without_credentials(content)
        if content.startswith(elf.MAGIC) and not source.placeholder:
            return Treated(self._relative(source, content), False)
        template = self._cut(source, content)
        if template is None or templates.fill(template, self.roots) != content:
            return Treated(content, False)
        return Treated(template, True)

    def _relative(self, source: Source, content: bytes) -> bytes:
        try:
            return elf.relative(content, source.path, self.roots)
        except elf.ElfError:
            return content

    def _cut(self, source: Source, content: bytes) -> bytes | None:
        if source.placeholder and not source.is_text:
            layer = source.path.partition("/")[0]
            return templates.cut_binary(content, layer, self.roots[layer], source.placeholder)
        if len(content) > MAX_TEXT_BYTES or b"\0" in content[:_BLOCK_BYTES]:
            return None
        return templates.cut_text(content, self.roots)


def without_credentials(direct_url: bytes) -> bytes:
    """Return a `direct_url.json` without user and password.

    >>> without_credentials(b'{"url": "https://me:secret@host/x.whl"}')
    b'{"url": "https://host/x.whl"}'
    """
    text = direct_url.decode("utf-8", "surrogateescape")
    return _CREDENTIALS.sub("", text).encode("utf-8", "surrogateescape")


def _read_at(path: str, offset: int, view: memoryview) -> int:
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        done = 0
        while done < len(view) and (num := file.readinto(view[done:])):
            done += num
    return done


def _is_current(source: Source) -> bool:
    with open(source.file, "rb") as file:
        return bytecode.is_current(file.read(bytecode.HEADER_BYTES), *source.origin)


def _is_large_and_no_elf(path: str) -> bool:
    if os.path.getsize(path) <= MAX_TEXT_BYTES:
        return False
    with open(path, "rb") as file:
        return file.read(len(elf.MAGIC)) != elf.MAGIC


def _hash_file(path: str) -> Content:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return Content(size, False, digest.hexdigest())
