"""Collects the facts that are recorded automatically about a mesh."""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress

from monarch_nb._wire.loaded import loaded
from monarch_nb.mesh import Mesh

_GIT_S = 5.0


def facts_of(mesh: Mesh) -> dict[str, str | int]:
    """Return facts about a mesh: name, sizes, hosts, the id of its environment, the commit of the working
    directory, and versions.
    """
    found: dict[str, str | int] = {
        "name": mesh.name,
        "num_ranks": len(mesh),
        "num_hosts": len(mesh.host_indices),
        **{f"size_{label}": size for label, size in mesh.sizes.items()},
        "python": platform.python_version(),
    }
    if (torch := loaded("torch")) is not None:
        found["torch"] = str(torch.__version__)
    for name, value in (("environment", mesh.status(fresh=False).environment), ("commit", _commit())):
        if value:
            found[name] = str(value)
    return found


def _commit() -> str:
    """Return the commit of the working directory, with `+changes` if files differ from it; empty without
    git.
    """
    commit = _git("rev-parse", "HEAD")
    return f"{commit}+changes" if commit and _git("status", "--porcelain", "-uno") else commit


def _git(*arguments: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=_GIT_S, check=True)
        return done.stdout.strip()
    return ""
