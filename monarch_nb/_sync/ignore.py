"""Selects the files of a folder that belong to a workspace: those that git knows and doesn't ignore, and
those that `.meshignore` names; never secrets, environments, or big files.

Without git, `.gitignore` files are followed by `pathspec`. What is left out is told.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from monarch_nb._units import size_text
from monarch_nb.exceptions import MeshUsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

MESHIGNORE = ".meshignore"
MARK = ".monarch_nb-"
"""Prefix of names of temporary files in a workspace."""
MAX_FILES = 200_000
BIG_BYTES = 100 << 20
_GIT_S = 60.0
_NEVER = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "node_modules",
        "__pycache__",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".tox",
        ".nox",
        ".eggs",
        ".DS_Store",
    }
)
"""Names that are never sent, nor reported as left out."""
_SECRETS = (
    ".env",
    ".env.*",
    "!.env.example",
    "!.env.template",
    "*.pem",
    "id_*",
    "!id_*.py",
    "!id_*.pub",
    ".netrc",
    ".pypirc",
    ".aws/",
    ".ssh/",
    ".git-credentials",
    ".npmrc",
    ".kube/",
    ".gnupg/",
    "*.p12",
    "*.keystore",
)


class LeftOut(msgspec.Struct, frozen=True):
    """A file or folder that isn't sent.

    Attributes:
        path: path below the workspace's folder; of a folder, with a trailing slash.
        reason: ".gitignore", "secret", "2.1 GB" ...
    """

    path: str
    reason: str


class Choice(msgspec.Struct, frozen=True):
    """The user's choice of files to include and exclude, as lines of a .gitignore.

    Attributes:
        include: patterns of files that are sent although they are ignored, secret or big.
        exclude: patterns of files that aren't sent.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: str, include: Sequence[str], exclude: Sequence[str]) -> Choice:
        """Return the choice of `.meshignore` in a folder, and of the patterns given."""
        with (
            suppress(OSError),
            open(os.path.join(folder, MESHIGNORE), encoding="utf-8", errors="replace") as file,
        ):
            lines = [line.rstrip("\n") for line in file if line.strip() and not line.startswith("#")]
            include = (*(line[1:] for line in lines if line.startswith("!")), *include)
            exclude = (*(line for line in lines if not line.startswith("!")), *exclude)
        return cls(tuple(include), tuple(exclude))


class Listing(msgspec.Struct, frozen=True):
    """The files of a workspace.

    Attributes:
        paths: below its folder, sorted.
        left_out: files that aren't sent; for an ignored folder, the folder.
    """

    paths: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


def list_files(folder: str, choice: Choice, imported: Collection[str] = ()) -> Listing:
    """Return the files of a folder that are sent, and those left out.

    Args:
        imported: paths below the folder of modules that this program has loaded: they go along although
            they're ignored.

    Raises:
        MeshUsageError: if there are too many, or a pattern isn't one.
    """
    found, ignored = _candidates(folder, bool(choice.include))
    include, exclude = _spec(choice.include), _spec(choice.exclude)
    environments = _environments(folder, found)
    paths: list[str] = []
    left_out = {path: LeftOut(path, ".gitignore") for path in ignored if not is_never(path)}
    for path in dict.fromkeys([*found, *(p for p in ignored if include.match_file(p)), *imported]):
        if is_never(path) or _is_below(path, environments):
            continue
        wanted = include.match_file(path)
        why = "" if wanted else _reason(folder, path, exclude)
        if path in imported and why == ".gitignore":
            why = ""
        if why:
            left_out[path] = LeftOut(path, why)
        else:
            left_out.pop(path, None)
            paths.append(path)
    left_out |= {path: LeftOut(path, "environment") for path in environments}
    return Listing(tuple(sorted(paths)), tuple(left_out[path] for path in sorted(left_out)))


def _reason(folder: str, path: str, exclude: GitIgnoreSpec) -> str:
    """Return why a file isn't sent; "" if it is."""
    if exclude.match_file(path):
        return f"{MESHIGNORE} or --exclude"
    if _spec(_SECRETS).match_file(path):
        return "secret"
    try:
        size = os.lstat(os.path.join(folder, path)).st_size
    except OSError:
        return ""
    return f"{size_text(size)}: --include" if size > BIG_BYTES else ""


@cache
def _spec(patterns: tuple[str, ...]) -> GitIgnoreSpec:
    """Return compiled patterns. Their library is loaded when it's needed: most programs sync nothing."""
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise MeshUsageError(
            f"sync: {error}: expected a pattern as in a .gitignore, such as 'data/' or '*.pt'"
        ) from None


def is_never(path: str) -> bool:
    """Say whether a path is never sent, nor reported: caches, files of version control, temporary files of a
    sync.
    """
    parts = path.split("/")
    return not _NEVER.isdisjoint(parts) or path.endswith((".pyc", ".pyo")) or parts[-1].startswith(MARK)


def _is_below(path: str, folders: Collection[str]) -> bool:
    parts = path.split("/")
    return any("/".join(parts[:n]) + "/" in folders for n in range(1, len(parts)))


def _environments(folder: str, paths: Sequence[str]) -> set[str]:
    """Return the folders that contain an environment: it's synced in another way, or not at all."""
    marks = ("pyvenv.cfg", "conda-meta/history")
    found = {path.removesuffix(mark) for path in paths for mark in marks if path.endswith(f"/{mark}")}
    if found or any(path in marks for path in paths):
        found.discard("")
    return found


# --- sources of names


def _candidates(folder: str, with_ignored: bool) -> tuple[list[str], list[str]]:
    """Return the files that aren't ignored, and the ignored ones: whole folders, or, if they may be wanted,
    each file in them.
    """
    if find_repository(folder) is not None:
        with suppress(OSError, subprocess.SubprocessError):
            return _ask_git(folder, with_ignored)
    found: list[str] = []
    ignored: list[str] = []
    for path, is_ignored in _walk(folder, "", (), with_ignored):
        (ignored if is_ignored else found).append(path)
        if len(found) + len(ignored) > MAX_FILES:
            raise too_many(folder)
    return found, ignored


def too_many(folder: str) -> MeshUsageError:
    """Return the error for a folder that is too large to be intended."""
    return MeshUsageError(
        f"sync: {folder} has over {MAX_FILES:,} files. Say which folder is your workspace: %mesh sync "
        "PATH; or leave some out: --exclude GLOB"
    )


def find_repository(folder: str) -> str | None:
    """Return the root of the git repository that a folder lies in."""
    at = os.path.realpath(folder)
    while not os.path.exists(os.path.join(at, ".git")):
        if at == os.path.dirname(at):
            return None
        at = os.path.dirname(at)
    return at


def _ask_git(folder: str, with_ignored: bool) -> tuple[list[str], list[str]]:
    found: list[str] = []
    for path in _git(folder, "-co"):
        below = os.path.join(folder, path)
        if path.endswith("/") or (os.path.isdir(below) and not os.path.islink(below)):  # another repository
            found += [f"{path.rstrip('/')}/{each}" for each in _candidates(below, False)[0]]
        else:
            found.append(path)
    if len(found) > MAX_FILES:
        raise too_many(folder)
    return found, list(_git(folder, "-oi", *([] if with_ignored else ["--directory"])))


def _git(folder: str, *arguments: str) -> Iterator[str]:
    """Yield the files that `git ls-files` lists.

    Raises:
        OSError, SubprocessError: if there's no git, or it refuses (a repository of another user's).
    """
    done = subprocess.run(
        ["git", "-C", folder, "ls-files", "-z", "--exclude-standard", *arguments],
        capture_output=True,
        check=True,
        timeout=_GIT_S,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    names = dict.fromkeys(done.stdout.split(b"\0"))
    return (os.fsdecode(name) for name in names if name)


Rules = tuple[tuple[str, "GitIgnoreSpec"], ...]
"""Folders, with what their .gitignore says, outermost first."""


def _walk(
    folder: str, below: str, rules: Rules, with_ignored: bool, ignored: bool = False
) -> Iterator[tuple[str, bool]]:
    """Go through a folder; give paths, and whether they're ignored: whole folders then, unless
    `with_ignored`.
    """
    rules = (*rules, *_rules_of(folder, below))
    try:
        entries = sorted(os.scandir(os.path.join(folder, below)), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        path = below + entry.name + "/" * is_folder
        if entry.name in _NEVER:
            continue
        is_out = ignored or is_ignored(path, rules)
        if is_folder and not (is_out and not with_ignored) and not _is_environment(entry.path):
            yield from _walk(folder, path, rules, with_ignored, is_out)
        elif is_folder and _is_environment(entry.path):
            yield f"{path}pyvenv.cfg", is_out
        else:
            yield path, is_out


def _rules_of(folder: str, below: str) -> Rules:
    with (
        suppress(OSError),
        open(os.path.join(folder, below, ".gitignore"), encoding="utf-8", errors="surrogateescape") as file,
    ):
        return ((below, _spec(tuple(file.read().splitlines()))),)
    return ()


def is_ignored(path: str, rules: Rules) -> bool:
    """Say whether a path is ignored by the last pattern that matches it; its folder isn't."""
    for below, spec in reversed(rules):
        for pattern in reversed(spec.patterns):
            if pattern.include is not None and _matches_itself(pattern, path[len(below) :]):
                return pattern.include
    return False


def _matches_itself(pattern: GitIgnoreSpecPattern, path: str) -> bool:
    """Say whether a pattern matches this path itself. `pathspec` matches the content of a matching folder,
    too: git does so only if the folder is ignored in the end.
    """
    if (found := pattern.match_file(path)) is None:
        return False
    text = str(pattern.pattern).rstrip().lstrip("!/")
    is_everything = set(text.rstrip("/").split("/")) == {"**"}
    is_whole = not is_everything and found.match.end() == len(path)
    if text.endswith("**"):  # a pattern for the content of a folder, not for the folder itself
        return not is_whole
    if text.endswith("**/"):
        return not is_whole and path.endswith("/")
    return is_whole


def _is_environment(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, mark)) for mark in ("pyvenv.cfg", "conda-meta"))
