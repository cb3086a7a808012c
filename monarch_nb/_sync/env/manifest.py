"""The manifest of an environment: its contents, as text that is equal byte for byte wherever it is made.
Pure.

A manifest names parts (a distribution, a conda package, the rest of a layer), a part lists entries (files and
links). Each has an id: the sha256 of its canonical text. So equal environments have one id, and of two that
differ only the parts that differ are looked at.

Canonical text is ASCII; a path is percent-encoded where it has a control character, a percent sign or a byte
beyond ASCII. Lines end
with a newline, fields are divided by tabs, entries are in the order of their paths::

    monarch_nb part 1 <TAB> name <TAB> version
    path <TAB> kind <TAB> size <TAB> sha256, or the link's target

    monarch_nb environment 1
    fact <TAB> name <TAB> value
    part <TAB> id <TAB> name <TAB> version

A path's first component is its layer. Nothing that comes in a manifest is believed: `read_part` refuses what
leads out of a prefix.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

from monarch_nb._sync.env.errors import EnvironmentSyncError

FILE, EXECUTABLE, TEMPLATE, SCRIPT, LINK = "f", "x", "t", "u", "l"
"""Kinds of entries: a file, an executable file, a template written anew for each prefix (`templates`), an
executable template, a symbolic link.
"""
KINDS = frozenset((FILE, EXECUTABLE, TEMPLATE, SCRIPT, LINK))
MADE_THERE = frozenset((TEMPLATE, SCRIPT))
PART_HEADER = "monarch_nb part 1"
HEADER = "monarch_nb environment 1"
MAX_BYTES = 1 << 40
_LAYER = re.compile(r"[a-z]+[0-9]*")
_SHA = re.compile(r"[0-9a-f]{64}")
_SAFE = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_PLAIN = re.compile(r"[ -$&-~]*")
_Read = TypeVar("_Read", "Part", "Manifest")


class ManifestError(EnvironmentSyncError):
    """The error of a manifest that is malformed, or would lead out of its prefix."""


class Entry(NamedTuple):
    """A file or a link.

    Attributes:
        path: below the prefix, with `/`; its first component is the layer.
        kind: one of `KINDS`.
        size: bytes of the content; of a link, 0.
        content: sha256 of the content as 64 hexadecimal digits; of a link, its target.
    """

    path: str
    kind: str
    size: int
    content: str


@dataclass(frozen=True)
class Part:
    """A part of an environment: a distribution, a conda package, or the rest of a layer."""

    name: str
    version: str
    entries: tuple[Entry, ...]

    @cached_property
    def text(self) -> bytes:
        """Canonical bytes."""
        lines = [f"{PART_HEADER}\t{_encoded(self.name)}\t{_encoded(self.version)}"]
        lines += [_line(entry) for entry in sorted(self.entries)]
        return ("\n".join(lines) + "\n").encode("ascii")

    @cached_property
    def id(self) -> str:
        """Sha256 of the canonical bytes."""
        return hashlib.sha256(self.text).hexdigest()

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)


class Change(NamedTuple):
    """A file of a part as it is now; None: it's gone.

    Attributes:
        path: of an entry that the part has.
        entry: what it is now, at the same path.
    """

    path: str
    entry: Entry | None


class PartName(NamedTuple):
    """A part as a manifest names it."""

    id: str
    name: str
    version: str


@dataclass(frozen=True)
class Manifest:
    """An environment: facts that a host is checked against, and its parts.

    Example:
        >>> Manifest({"python": "3.11.7"}, ()).id[:8]
        'f5b62117'
    """

    facts: Mapping[str, str]
    parts: tuple[PartName, ...]

    @cached_property
    def text(self) -> bytes:
        """Canonical bytes."""
        lines = [HEADER]
        lines += [f"fact\t{_encoded(name)}\t{_encoded(self.facts[name])}" for name in sorted(self.facts)]
        lines += [
            f"part\t{p.id}\t{_encoded(p.name)}\t{_encoded(p.version)}" for p in sorted(self.parts, key=_order)
        ]
        return ("\n".join(lines) + "\n").encode("ascii")

    @cached_property
    def id(self) -> str:
        """Sha256 of the canonical bytes; 64 hexadecimal digits."""
        return hashlib.sha256(self.text).hexdigest()


def manifest_of(facts: Mapping[str, str], parts: Iterable[Part]) -> Manifest:
    """Return the manifest that names these parts."""
    return Manifest(dict(facts), tuple(PartName(p.id, p.name, p.version) for p in parts))


def read_manifest(text: bytes) -> Manifest:
    """Return the manifest of canonical bytes.

    Raises:
        ManifestError: if they aren't canonical.
    """
    header, *lines = _lines(text)
    if header != HEADER:
        raise ManifestError(f"an environment's manifest begins with {HEADER!r}, not with {header[:40]!r}")
    facts, parts = {}, []
    for line in lines:
        match line.split("\t"):
            case ["fact", name, value]:
                facts[_decoded(name)] = _decoded(value)
            case ["part", part, name, version] if _SHA.fullmatch(part):
                parts.append(PartName(part, _decoded(name), _decoded(version)))
            case _:
                raise ManifestError(f"no line of a manifest: {line[:100]!r}")
    return _canonical(Manifest(facts, tuple(parts)), text)


def read_part(text: bytes) -> Part:
    """Return the part of a manifest of canonical bytes, every path and link checked on its own; `check_tree`
    checks them together.

    Raises:
        ManifestError: if they aren't canonical, or something would lead out of the prefix.
    """
    header, *lines = _lines(text)
    match header.split("\t"):
        case [word, name, version] if word == PART_HEADER:
            return _canonical(Part(_decoded(name), _decoded(version), tuple(map(_entry, lines))), text)
    raise ManifestError(f"a part begins with {PART_HEADER!r}, a name and a version, not with {header[:60]!r}")


def changed_text(text: bytes, changes: Iterable[Change]) -> bytes:
    """Return the canonical bytes of a part whose files have changed: without reading all others.

    Raises:
        ManifestError: if the part has no such file, or what it's to be can't be.

    >>> entry = Entry("env/a.py", FILE, 1, "0" * 64)
    >>> changed_text(Part("", "", (entry,)).text, [Change("env/a.py", None)]) == Part("", "", ()).text
    True
    """
    for path, entry in changes:
        start = text.find(f"\n{_encoded(path)}\t".encode("ascii"))
        if start < 0 or (entry is not None and (entry.path != path or entry.kind == LINK)):
            raise ManifestError(f"{path[:200]!r} can't change in a part that doesn't have it as a file")
        line = b"" if entry is None else b"\n" + _line(entry).encode("ascii")
        if entry is not None:
            _entry(line[1:].decode("ascii"))
        text = text[:start] + line + text[text.index(b"\n", start + 1) :]
    return text


def changed_part(part: Part, changes: Sequence[Change]) -> Part:
    """Return a part whose files have changed.

    Raises:
        ManifestError: if it has no such file, or what it's to be can't be.
    """
    text, new = changed_text(part.text, changes), dict(changes)
    entries = (new.get(entry.path, entry) for entry in part.entries)
    found = Part(part.name, part.version, tuple(entry for entry in entries if entry is not None))
    vars(found)["text"] = text  # what `text` would make of all entries, once more
    return found


def check_tree(parts: Sequence[Part]) -> None:
    """Check that entries of all parts make one tree: no path twice, and nothing below what isn't a
    directory.

    Raises:
        ManifestError: naming the path.
    """
    paths: set[str] = set()
    folders: set[str] = set()
    for part in parts:
        for entry in part.entries:
            if entry.path in paths:
                raise ManifestError(f"{entry.path!r} is in a manifest twice")
            paths.add(entry.path)
            folder = entry.path.rpartition("/")[0]
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
    both = paths & folders
    if both:
        raise ManifestError(
            f"{min(both)!r} is a file or a link in a manifest, and a directory of other entries, too"
        )


def check_path(path: str) -> None:
    """Check that a path may be made below a prefix.

    Raises:
        ManifestError: if it's absolute, not normalised, leads upwards, has a NUL, or names no layer.

    >>> check_path("env/../../etc/passwd")
    Traceback (most recent call last):
    ...
    monarch_nb._sync.env.manifest.ManifestError: 'env/../../etc/passwd' is no path below a prefix
    """
    layer, slash, rest = path.partition("/")
    if not slash or not _LAYER.fullmatch(layer) or "\0" in rest or not _has_plain_names(rest):
        raise ManifestError(f"{path[:200]!r} is no path below a prefix")


def check_link(path: str, target: str) -> None:
    """Check that a link stays in its prefix, whatever other links there are.

    `..` may only stand at its beginning: links are made in directories, so these steps are what they look
    like; behind a link they wouldn't be.

    Raises:
        ManifestError: if it may lead out.
    """
    names = target.split("/")
    num_up = next((i for i, name in enumerate(names) if name != ".."), len(names))
    down = names[num_up:]
    is_plain = _has_plain_names("/".join(down)) if down else num_up > 0
    if "\0" in target or not is_plain or num_up > path.count("/") - (not down):
        raise ManifestError(f"the link {path[:200]!r} to {target[:200]!r} may lead out of its prefix")


def _has_plain_names(path: str) -> bool:
    return not {"", ".", ".."} & set(path.split("/"))


def _line(entry: Entry) -> str:
    return f"{_encoded(entry.path)}\t{entry.kind}\t{entry.size}\t{_encoded(entry.content)}"


def _entry(line: str) -> Entry:
    fields = line.split("\t")
    if len(fields) != 4 or fields[1] not in KINDS or not fields[2].isdecimal() or len(fields[2]) > 15:
        raise ManifestError(f"no line of a part: {line[:200]!r}")
    entry = Entry(_decoded(fields[0]), fields[1], int(fields[2]), _decoded(fields[3]))
    check_path(entry.path)
    if entry.kind == LINK:
        check_link(entry.path, entry.content)
    elif not _SHA.fullmatch(entry.content) or entry.size > MAX_BYTES:
        raise ManifestError(f"{entry.path!r} has no sha256 or no size that can be")
    return entry


def _canonical(found: _Read, text: bytes) -> _Read:
    """Return the value that was read, if its canonical bytes are those that it was read from."""
    if found.text != text:
        raise ManifestError(
            "these bytes aren't canonical: something is out of order, twice, or encoded otherwise"
        )
    return found


def _lines(text: bytes) -> Iterator[str]:
    if not text.endswith(b"\n") or not text.isascii():
        raise ManifestError("a manifest is ASCII and ends with a newline")
    return iter(text[:-1].decode("ascii").split("\n"))


def _order(part: PartName) -> tuple[str, str, str]:
    return part.name, part.version, part.id


def _encoded(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return quote_from_bytes(text.encode("utf-8", "surrogateescape"), safe=_SAFE)


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")
