"""Remembers the outcome of a scan, and gives it again while no file's status has changed.

A scan that finds the files as they were needs their statuses only: no records, no hashes, no sorting. What
decides besides the files (the layers, the interpreter, this package) is in the name of the snapshot.

Format: msgpack, one file for each environment of this user, mode 0600. What can't be read counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property

import msgspec

from monarch_nb._sync.env.cache import RACY_NS
from monarch_nb._sync.env.layers import Layers
from monarch_nb._sync.env.manifest import Manifest, Part, read_manifest, read_part
from monarch_nb._sync.env.treatment import Source
from monarch_nb._sync.env.tree import Found
from monarch_nb._version import __version__

FORMAT = 1
MAX_KEPT = 8


class Files(msgspec.Struct, frozen=True):
    """The files of a snapshot, needed only if something is sent.

    Attributes:
        parts: by id, their canonical text.
        sources: by sha256.
    """

    parts: dict[str, bytes]
    sources: dict[str, Source]


class Snapshot(msgspec.Struct, frozen=True):
    """The outcome of a scan.

    Attributes:
        fingerprint: of all files' statuses.
        manifest: canonical text.
        num_bytes: of all files, equal ones counted each.
        outside: (path, reason) of links to what isn't part of the environment, whether that exists or not.
        edited: by package, files that aren't what was installed.
        files: `Files`, undecoded.
    """

    fingerprint: str
    manifest: bytes
    num_bytes: int
    outside: tuple[tuple[str, str], ...]
    edited: dict[str, tuple[str, ...]]
    files: msgspec.Raw


class StoredParts(Mapping[str, Part]):
    """The parts of a snapshot by id, each parsed when it's asked for."""

    def __init__(self, found: Manifest, files: StoredFiles) -> None:
        self._ids = dict.fromkeys(part.id for part in found.parts)
        self._files = files
        self._read: dict[str, Part] = {}

    def __getitem__(self, part: str) -> Part:
        if part not in self._read:
            self._read[part] = read_part(self._files.decoded.parts[part])
        return self._read[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


class StoredSources(Mapping[str, Source]):
    """The sources of a snapshot by sha256, decoded when one is asked for."""

    def __init__(self, files: StoredFiles) -> None:
        self._files = files

    def __getitem__(self, sha256: str) -> Source:
        return self._files.decoded.sources[sha256]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files.decoded.sources)

    def __len__(self) -> int:
        return len(self._files.decoded.sources)


class StoredFiles:
    """`Files` that are decoded once, when they're needed."""

    def __init__(self, raw: msgspec.Raw) -> None:
        self._raw = raw

    @cached_property
    def decoded(self) -> Files:
        """The decoded files."""
        return msgspec.msgpack.decode(self._raw, type=Files)


class Snapshots:
    """The snapshots of this user.

    Args:
        folder: where they are; made if it isn't there. One that can't be written to has none.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find(self, found: Layers, fingerprint: str) -> Snapshot | None:
        """Return the snapshot of layers whose files have this fingerprint."""
        with suppress(OSError, msgspec.MsgspecError):
            with open(self._path(found), "rb") as file:
                there = msgspec.msgpack.decode(file.read(), type=Snapshot)
            read_manifest(there.manifest)
            return there if there.fingerprint == fingerprint else None
        return None

    def keep(self, found: Layers, snapshot: Snapshot) -> None:
        """Store the outcome of a scan."""
        with suppress(OSError):
            os.makedirs(self._folder, 0o700, exist_ok=True)
            path = self._path(found)
            beside = f"{path}.{os.getpid()}"
            with suppress(FileNotFoundError):
                os.unlink(beside)
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with open(fd, "wb") as file:
                    file.write(msgspec.msgpack.encode(snapshot))
                os.rename(beside, path)
            except OSError:
                os.unlink(beside)
                raise
            self._forget_old()

    def _forget_old(self) -> None:
        entries = sorted(os.scandir(self._folder), key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in entries[MAX_KEPT:]:
            os.unlink(entry.path)

    def _path(self, found: Layers) -> str:
        decides = [FORMAT, __version__, asdict(found)]
        text = json.dumps(decides, sort_keys=True, default=sorted)
        return f"{self._folder}/{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"


def fingerprint_of(files: Sequence[Sequence[Found]]) -> str:
    """Return a digest of the statuses of all files, layer by layer."""
    digest = hashlib.sha256()
    for layer in files:
        rows = [
            (path, s.st_dev, s.st_ino, s.st_mode, s.st_nlink, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
            for path, s in layer
        ]
        digest.update(marshal.dumps(rows, 2))  # 2: equal values are equal bytes, whatever refers to them
    return digest.hexdigest()


def is_settled(files: Sequence[Sequence[Found]]) -> bool:
    """Say whether no file was changed a moment ago: another write might leave the same time."""
    last = max((max(s.st_mtime_ns, s.st_ctime_ns) for layer in files for _, s in layer), default=0)
    return last < time.time_ns() - RACY_NS


def taken(
    fingerprint: str,
    found: Manifest,
    parts: Mapping[str, Part],
    sources: Mapping[str, Source],
    outside: Sequence[tuple[str, str]],
    edited: Mapping[str, tuple[str, ...]],
) -> Snapshot:
    """Return the snapshot of what a scan has found."""
    files = Files({part.id: part.text for part in parts.values()}, dict(sources))
    return Snapshot(
        fingerprint,
        found.text,
        sum(part.num_bytes for part in parts.values()),
        tuple(outside),
        dict(edited),
        msgspec.Raw(msgspec.msgpack.encode(files)),
    )
