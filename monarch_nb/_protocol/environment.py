"""Types about the environments in which hosts start ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from monarch_nb._protocol.base import Event, Record, Request

_LEADS_ELSEWHERE = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")


class RankEnvironment(Record, frozen=True):
    """An interpreter, and how paths of the notebook's machine are spelled on this one.

    Attributes:
        id: of the environment.
        python: path of the interpreter.
        path: replaces the notebook's `sys.path`.
        roots: (directory there, directory here) of what the environment consists of; empty where it's the
            same one.
        prefix: the environment's own directory, whose `bin` is put in front of `PATH`; "" where it's the same
            one.
        lock: file whose shared lock keeps the environment from being removed; "" if nobody removes it.
    """

    id: str
    python: str
    path: tuple[str, ...]
    roots: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    lock: str = ""

    def translated(self, path: str) -> str:
        """Return a path of the notebook's machine as it is here; what isn't the environment's stays.

        >>> RankEnvironment("a", "", (), (("/v", "/s/env"), ("/v/src", "/s/src1"))).translated("/v/src/m.py")
        '/s/src1/m.py'
        """
        for there, here in sorted(self.roots, key=lambda root: -len(root[0])):
            if path == there or path.startswith(there + "/"):
                return here + path[len(there) :]
        return path

    def translated_path(self, path: Sequence[str], kept: Sequence[str] = ()) -> list[str]:
        """Return a module path as it is here.

        Args:
            kept: directories of the notebook's machine that are brought here by themselves: what is in them
                stays as it is.
        """
        roots = (*((each, each) for each in kept), *(root for root in self.roots if root[0] not in kept))
        other = RankEnvironment(self.id, self.python, self.path, roots)
        return [other.translated(entry) for entry in path]

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables for the interpreter: without those that lead into another
        environment."""
        if not self.prefix:
            return dict(environ)
        kept = {name: value for name, value in environ.items() if name not in _LEADS_ELSEWHERE}
        kind = "CONDA_PREFIX" if os.path.isdir(f"{self.prefix}/conda-meta") else "VIRTUAL_ENV"
        return {
            **kept,
            kind: self.prefix,
            "PATH": f"{self.prefix}/bin{os.pathsep}{environ.get('PATH', os.defpath)}",
        }


class PackageRow(Record, frozen=True):
    """An installed package: version, digest of its content, whether it was edited by hand."""

    version: str
    digest: str
    edited: bool = False


class HostPackages(Record, frozen=True):
    """The packages that are installed where a host's ranks are started.

    Attributes:
        is_same: whether that's the asking program's own environment: packages aren't listed then.
    """

    is_same: bool
    packages: dict[str, PackageRow] = {}


class GetPackages(Request[HostPackages], frozen=True):
    """Ask a host process what is installed where its ranks are started.

    Attributes:
        files: file systems that the asking program sees, as `files_id` identifies them.
        prefix: of its interpreter.
    """

    files: str
    prefix: str


class SetDifferences(Request[None], frozen=True):
    """Enter in what hosts differ from a notebook, in words, by host; empty: in nothing."""

    differences: dict[int, str]


class UseEnvironments(Request[dict[int, str]], frozen=True):
    """Have hosts start ranks in other environments from now on; answers with the problems of those that
    can't, by host."""

    environments: dict[int, RankEnvironment]


class GetEnvironments(Request[dict[int, RankEnvironment]], frozen=True):
    """Return the environments that hosts start ranks in, by host; those that were never told aren't in it."""


class SwitchEnvironment(Request[None], frozen=True):
    """Start ranks in another environment from now on; `number`: of the switch."""

    environment: RankEnvironment
    number: int


class EnvironmentSwitched(Event, frozen=True):
    """The notice that a host has switched the environment in which it starts ranks, or has failed to, for a
    problem.
    """

    number: int
    problem: str
