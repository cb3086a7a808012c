"""Compares packages between hosts. Pure.

A distribution's digest is over what its wheel has, not over what an installer adds: pip and uv write
different `RECORD`s for the same wheel. So versions may be equal and digests not: another build, or an edit by
hand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from monarch_nb._sync.env.records import PRIVATE, Package

MISSING = "not there"
_SHORT = 8


class PackageDigest(NamedTuple):
    """A package as it's installed somewhere.

    Attributes:
        version: as its installer has it; conda's have the build, too.
        digest: of what's in it, as hexadecimal digits.
        edited: whether files of it aren't what was installed.
    """

    version: str
    digest: str
    edited: bool = False

    def __str__(self) -> str:
        return f"{self.version}{', edited by hand' if self.edited else ''}"


@dataclass(frozen=True)
class PackageDifference:
    """A package that differs between hosts.

    Attributes:
        name: of the package.
        groups: each distinct state with who has it, the largest group first.
    """

    name: str
    groups: tuple[tuple[tuple[str, ...], str], ...]


def digest_of(package: Package, edited: Iterable[str] = ()) -> PackageDigest:
    """Return the digest of a package, by the records of its installer.

    Args:
        edited: files that aren't what was installed.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in package.claims if _is_of_wheel(path)):
        digest.update(
            f"{_below_site(path)}\t{package.claims[path].sha256}\n".encode("utf-8", "surrogateescape")
        )
    changed = sorted(edited)
    for path in changed:
        digest.update(f"edited\t{path}\n".encode("utf-8", "surrogateescape"))
    return PackageDigest(package.version, digest.hexdigest(), bool(changed))


def compare_packages(by_host: Mapping[str, Mapping[str, PackageDigest]]) -> tuple[PackageDifference, ...]:
    """Return the packages that differ, by name.

    Args:
        by_host: for each host, its packages by name.

    Example:
        >>> here, there = {"numpy": PackageDigest("2.1", "aa")}, {"numpy": PackageDigest("1.26", "bb")}
        >>> compare_packages({"here": here, "host 1": there, "host 2": there})
        (PackageDifference(name='numpy', groups=((('host 1', 'host 2'), '1.26'), (('here',), '2.1'))),)
    """
    names = sorted({name for packages in by_host.values() for name in packages})
    found = (PackageDifference(name, _groups(name, by_host)) for name in names)
    return tuple(each for each in found if len(each.groups) > 1)


def _groups(
    name: str, by_host: Mapping[str, Mapping[str, PackageDigest]]
) -> tuple[tuple[tuple[str, ...], str], ...]:
    states: dict[PackageDigest | None, list[str]] = {}
    for host, packages in by_host.items():
        states.setdefault(packages.get(name), []).append(host)
    words = [MISSING if state is None else str(state) for state in states]
    groups = []
    for (state, hosts), text in zip(states.items(), words, strict=True):
        is_unique = state is None or words.count(text) == 1
        groups.append(
            (tuple(hosts), text if is_unique or state is None else f"{text} ({state.digest[:_SHORT]})")
        )
    return tuple(sorted(groups, key=lambda group: (-len(group[0]), group[0])))


def _is_of_wheel(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name not in PRIVATE and not name.endswith(".pyc") and not path.startswith("bin/")


def _below_site(path: str) -> str:
    return path.rpartition("site-packages/")[2]
