"""The entries of a workspace's manifest: paths, kinds, sizes, contents. Pure.

Whatever a manifest says, files lie below the folder that it's for: paths are relative and normal, and a
link's target stays inside.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 3000
"""Some less than the kernel's PATH_MAX of 4096: the folder's own path comes in front."""
_CONTENT = re.compile(r"[0-9a-f]{64}")
_FIELDS = 5


class BadEntry(ValueError):
    """The error of an entry that no workspace may have; its text names the entry."""


class Kind(StrEnum):
    """The kind of an entry: a plain file, an executable file, or a link."""

    FILE = "f"
    EXECUTABLE = "x"
    LINK = "l"


class Entry(msgspec.Struct, frozen=True):
    """One file of a workspace.

    Attributes:
        path: below the workspace's folder, with slashes; bytes that are no UTF-8 as surrogates
            (`os.fsdecode`).
        content: sha256 of the file's content, in hexadecimal digits; for a link, its target.
        size: in bytes; 0 for a link.
        mtime_ns: when it was last changed, nanoseconds since the epoch.
    """

    path: str
    kind: Kind
    content: str
    size: int = 0
    mtime_ns: int = 0

    @property
    def is_link(self) -> bool:
        """Whether the entry is a symbolic link."""
        return self.kind is Kind.LINK


Manifest = Mapping[str, Entry]
"""Entries by path."""


def check_path(path: str) -> tuple[str, ...]:
    """Return the components of a path below the workspace's folder.

    Raises:
        BadEntry: if it isn't relative and normal, or a name in it is too long.

    >>> check_path("src/model.py")
    ('src', 'model.py')
    """
    parts = tuple(path.split("/"))
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise BadEntry(
            f"{path!r} is no path below the workspace: expected one like 'src/model.py', without '..'"
        )
    try:
        sizes = [len(part.encode("utf-8", "surrogateescape")) for part in parts]
    except UnicodeEncodeError:
        raise BadEntry(
            f"{path!r} is no path of a file: it has characters that no file's name can have"
        ) from None
    if max(sizes) > MAX_NAME_BYTES or sum(sizes) + len(sizes) > MAX_PATH_BYTES:
        raise BadEntry(
            f"{path[:80]!r}... is too long: {MAX_NAME_BYTES} bytes a name, {MAX_PATH_BYTES} in all"
        )
    return parts


def check_target(path: str, target: str) -> None:
    """Check that a link stays below the workspace's folder, whatever the workspace's other links point to.

    `..` is allowed only at the start of the target, where the folders above are real folders; after a name,
    it could leave through a link.

    Raises:
        BadEntry: if the link may lead out of the folder.
    """
    depth = len(check_path(path)) - 1
    parts = target.split("/")
    num_up = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    rest = [part for part in parts[num_up:] if part != "."]
    if not target or target.startswith("/") or num_up > depth:
        raise BadEntry(f"{path!r} is a link that leads out of the workspace: {target!r}")
    if rest:
        check_path("/".join(rest))


def check_entry(entry: Entry) -> tuple[str, ...]:
    """Return the components of an entry's path.

    Raises:
        BadEntry: if the entry is invalid.
    """
    parts = check_path(entry.path)
    if entry.is_link:
        check_target(entry.path, entry.content)
    elif not _CONTENT.fullmatch(entry.content) or entry.size < 0:
        raise BadEntry(
            f"{entry.path!r}: expected a sha256 of 64 digits and a size, not {entry.content!r}, {entry.size}"
        )
    return parts


def manifest_of(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return entries by path, sorted.

    Raises:
        BadEntry: if an entry is invalid, if two have the same path, or if one lies below another.
    """
    found: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda each: each.path):
        parts = check_entry(entry)
        if entry.path in found:
            raise BadEntry(f"{entry.path!r} is there twice")
        for n in range(1, len(parts)):
            if (above := "/".join(parts[:n])) in found:
                raise BadEntry(f"{entry.path!r} lies below {above!r}, which is no folder")
        found[entry.path] = entry
    return found


def pack(manifest: Manifest) -> bytes:
    """Return a manifest as canonical bytes: five fields for each entry, sorted by path, each followed by a
    NUL.
    """
    fields: list[str] = []
    for path in sorted(manifest):
        entry = manifest[path]
        fields += [entry.path, entry.kind, entry.content, str(entry.size), str(entry.mtime_ns)]
    return "".join(f"{field}\0" for field in fields).encode("utf-8", "surrogateescape")


def unpack(data: bytes) -> dict[str, Entry]:
    """Return the manifest that `pack` has encoded.

    Raises:
        BadEntry: if the bytes aren't a manifest.
    """
    fields = data.decode("utf-8", "surrogateescape").split("\0")
    if fields.pop() or len(fields) % _FIELDS:
        raise BadEntry("this is no manifest: it ends in the middle of an entry")
    rows = (fields[n : n + _FIELDS] for n in range(0, len(fields), _FIELDS))
    return manifest_of(_entry(*row) for row in rows)


def _entry(path: str, kind: str, content: str, size: str, mtime_ns: str) -> Entry:
    try:
        return Entry(path, Kind(kind), content, int(size), int(mtime_ns))
    except ValueError:
        raise BadEntry(
            f"{path!r}: expected kind, size and time, not {kind!r}, {size!r}, {mtime_ns!r}"
        ) from None


def digest(data: bytes) -> str:
    """Return the sha256 of a content, by which it's named."""
    return hashlib.sha256(data).hexdigest()


def manifest_id(manifest: Manifest) -> str:
    """Return the id of a manifest."""
    return digest(pack(manifest))
