"""Reads installers' records of installed files: `RECORD` of wheels, `conda-meta` of conda packages.

A claim is the content of a file as its installer knows it. It's believed without reading the file if the file
looks untouched since:

- its size is what the claim says, and it isn't in `bin/`, where installers write what depends on the prefix;
- it isn't newer than `RECORD`, or the conda record, by more than 2 s;
- with more than one link (uv shares files between environments and its cache) it isn't newer than `WHEEL` by
  more than two minutes:
  uv writes `RECORD` anew into each environment, and an edit in one of them is in the cache, hence in the next
  one, older than its `RECORD`.
"""

from __future__ import annotations

import base64
import binascii
import csv
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

LATE_NS = 2_000_000_000
LATE_LINKED_NS = 120_000_000_000
PRIVATE = frozenset(("INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_build.json", "uv_cache.json"))
"""Files that each installer writes differently: they aren't compared."""
_SHA256_BYTES = 32


class Claim(NamedTuple):
    """The record of an installer about a file.

    Attributes:
        sha256: 64 hexadecimal digits.
        size: in bytes; -1 if it isn't said.
        until_ns, linked_until_ns: how new the file may be, by its number of links (one; more).
        placeholder: placeholder in the package for the prefix; "" if there was none.
        is_text: whether that is a text file.
    """

    sha256: str
    size: int
    until_ns: int
    linked_until_ns: int
    placeholder: str = ""
    is_text: bool = True

    def is_believed(self, path: str, info: os.stat_result) -> bool:
        """Say whether a file with this status is taken for what was installed; `path`: below its layer."""
        if info.st_size != self.size or path.startswith("bin/") or self.placeholder:
            return False
        return info.st_mtime_ns <= (self.until_ns if info.st_nlink == 1 else self.linked_until_ns)


@dataclass(frozen=True)
class Package:
    """An installed package.

    Attributes:
        claims: by path below the layer; what no record knows the content of isn't in it.
        files: all paths that are listed, below the layer.
        is_built_here: whether it may have paths of this machine in it, since its wheel was made on it.
        editable: the directory that it's imported from, for an editable install; else "".
    """

    name: str
    version: str
    claims: dict[str, Claim] = field(repr=False)
    files: tuple[str, ...] = field(repr=False)
    is_built_here: bool = False
    editable: str = ""


def wheel_packages(root: str, site: str) -> Iterator[Package]:
    """Yield the packages of a directory by their `.dist-info`; those that conda has installed are left to its
    own records.

    Args:
        root: of the layer.
        site: path of the directory below it: `lib/python3.11/site-packages`.
    """
    with suppress(OSError):
        for name in sorted(os.listdir(os.path.join(root, site))):
            if name.endswith(".dist-info"):
                folder = f"{site}/{name}" if site else name
                if (package := _wheel_package(root, site, folder)) is not None:
                    yield package


def wheel_glibc(root: str, site: str) -> Iterator[str]:
    """Yield the versions of glibc that wheels were built for, by their tags: `manylinux_2_28` is 2.28."""
    with suppress(OSError):
        for name in os.listdir(os.path.join(root, site)):
            if name.endswith(".dist-info"):
                found = re.findall(
                    r"^Tag: .*manylinux_(\d+)_(\d+)_", _read(root, f"{site}/{name}", "WHEEL"), re.MULTILINE
                )
                yield from (f"{major}.{minor}" for major, minor in found[:1])


def conda_packages(root: str) -> Iterator[Package]:
    """Yield the packages that conda, mamba or pixi have installed into a prefix."""
    folder = os.path.join(root, "conda-meta")
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.endswith(".json"):
            with suppress(ValueError, KeyError, TypeError):  # then its files count as unknown, and are read
                with open(path, encoding="utf-8") as file:
                    yield _conda_package(json.load(file), f"conda-meta/{name}", os.stat(path).st_mtime_ns)


def _wheel_package(root: str, site: str, folder: str) -> Package | None:
    name, _, version = os.path.basename(folder).removesuffix(".dist-info").partition("-")
    record = os.path.join(root, folder, "RECORD")
    if _read(root, folder, "INSTALLER").strip() == "conda" or not os.path.exists(record):
        return None
    until_ns = os.stat(record).st_mtime_ns + LATE_NS
    wheel = os.path.join(root, folder, "WHEEL")
    linked_ns = os.stat(wheel).st_mtime_ns + LATE_LINKED_NS if os.path.exists(wheel) else 0
    claims, files = {}, []
    for path, digest, size in _rows(record):
        inside = os.path.normpath(f"{site}/{path}") if ".." in path or not site else f"{site}/{path}"
        if inside.startswith(("/", "../")):  # in none of the layers
            continue
        files.append(inside)
        if digest.startswith("sha256=") and (sha := _hexadecimal(digest[7:])):
            claims[inside] = Claim(sha, int(size) if size.isdecimal() else -1, until_ns, linked_ns)
    return Package(
        _normalised(name), version, claims, tuple(files),
        is_built_here=bool(re.search(r"^Tag: \S+-linux_\w+$", _read(root, folder, "WHEEL"), re.MULTILINE)),
        editable=editable_root(_read(root, folder, "direct_url.json")),
    )  # fmt: skip


def _conda_package(record: dict[str, Any], itself: str, written_ns: int) -> Package:
    claims, files = {}, [itself]
    until_ns = written_ns + LATE_NS
    for each in record["paths_data"]["paths"]:
        path, sha = str(each["_path"]), str(each.get("sha256_in_prefix") or each.get("sha256") or "")
        files.append(path)
        placeholder = str(each.get("prefix_placeholder") or "")
        if len(sha) == 2 * _SHA256_BYTES and each.get("path_type") != "softlink":
            is_text = each.get("file_mode") != "binary"
            claims[path] = Claim(
                sha, int(each.get("size_in_bytes") or -1), until_ns, until_ns, placeholder, is_text
            )
    version = f"{record['version']} {record.get('build', '')}".strip()
    return Package(str(record["name"]), version, claims, tuple(files))


def editable_root(direct_url: str) -> str:
    """Return the directory that an editable install is imported from; "" if this is of none."""
    with suppress(ValueError, AttributeError):
        found = json.loads(direct_url or "{}")
        if found.get("dir_info", {}).get("editable"):
            from urllib.parse import unquote, urlparse

            return os.path.realpath(unquote(urlparse(found["url"]).path))
    return ""


def _rows(record: str) -> Iterator[tuple[str, str, str]]:
    with open(record, newline="", encoding="utf-8", errors="surrogateescape") as file:
        for row in csv.reader(file):
            if len(row) >= 3:
                yield row[0], row[1], row[2]


def _hexadecimal(text: str) -> str:
    try:
        found = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return ""
    return found.hex() if len(found) == _SHA256_BYTES else ""


def _read(root: str, folder: str, name: str) -> str:
    with suppress(OSError):
        with open(os.path.join(root, folder, name), encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    return ""


def _normalised(name: str) -> str:
    """Return a distribution's name as all tools spell it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
