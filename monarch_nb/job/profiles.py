"""Profiles of clusters in `clusters.toml`: the name of a cluster, and how its hosts are obtained.

A profile runs commands, so the file is never looked for in the working directory, and one that others could
have written isn't read.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job.spec import HostSpec, nearest, read_table

SYSTEM_FILE = "/etc/monarch_nb/clusters.toml"


@dataclass(frozen=True)
class Profile:
    """A profile of a cluster: its name and settings.

    Attributes:
        source: the file that contains it; empty for an engine without a profile.
    """

    name: str
    spec: HostSpec
    source: str = ""


def user_file() -> str:
    """Return the path of this user's profiles."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "monarch_nb", "clusters.toml")


def read_profiles(engines: Iterable[str], files: Sequence[str] = ()) -> dict[str, Profile]:
    """Return the profiles of this machine and of this user; the user's own take precedence.

    Args:
        engines: names of engines that a profile may have.
        files: read these instead, the last one first.

    Raises:
        MeshUsageError: naming the file, the profile and the key that can't be.

    Example:
        >>> read_profiles(["slurm"])["lab"].spec.partition            # doctest: +SKIP
        'a100'
    """
    found, wrong = list_profiles(engines, files)
    if wrong:
        raise MeshUsageError(next(iter(wrong.values())))
    return found


def list_profiles(
    engines: Iterable[str], files: Sequence[str] = ()
) -> tuple[dict[str, Profile], dict[str, str]]:
    """Return the profiles as `read_profiles` does, and what is said of those that can't be, by name; of a
    file that can't be, by its path.
    """
    known = list(engines)
    found: dict[str, Profile] = {}
    wrong: dict[str, str] = {}
    for path in files or (SYSTEM_FILE, user_file()):
        try:
            tables = _tables(path)
        except MeshUsageError as error:
            wrong[path] = str(error)
            continue
        for name, table in tables.items():
            found.pop(name, None)
            wrong.pop(name, None)
            try:
                found[name] = Profile(name, _spec(name, table, known), path)
            except MeshUsageError as error:
                wrong[name] = f"{path}: {error}"
    return found, wrong


def _spec(name: str, table: object, known: list[str]) -> HostSpec:
    if not isinstance(table, dict):
        raise MeshUsageError(f"{name} stands outside of a profile; put it below a line as [lab]")
    if name in known:
        raise MeshUsageError(f"[{name}] is the name of an engine; call the profile otherwise")
    try:
        return read_table(table, known)
    except MeshUsageError as error:
        raise MeshUsageError(f"[{name}] {error}") from None


def find_profile(name: str, engines: Iterable[str], files: Sequence[str] = ()) -> Profile:
    """Return the profile of that name, or one that has nothing but an engine.

    Raises:
        MeshUsageError: naming the nearest one, and those that there are; or what in it can't be.
    """
    known = list(engines)
    profiles, wrong = list_profiles(known, files)
    if name in profiles:
        return profiles[name]
    if name in known:
        return Profile(name, HostSpec(name))
    for where in (name, *(key for key in wrong if "/" in key)):
        if where in wrong:
            raise MeshUsageError(wrong[where])
    listed = f"profiles: {', '.join(profiles) or 'none'}; engines: {', '.join(known)}"
    raise MeshUsageError(
        f"there is no profile or engine {name!r}.{nearest(name, [*profiles, *known])} {listed}. "
        f"Profiles lie in {user_file()}; %mesh clusters lists what there is"
    )


def _tables(path: str) -> dict[str, object]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise MeshUsageError(f"{path} can't be read: {error.strerror}") from None
    with open(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.getuid()) or about.st_mode & 0o022:
            raise MeshUsageError(
                f"{path} can be written by others, and a profile runs commands: chmod go-w {path}"
            )
        try:
            return tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise MeshUsageError(f"{path} is no TOML: {error}") from None
