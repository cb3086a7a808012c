"""Gets missing content from the package index that a host is configured to use: its uv or pip installs
distributions into a folder of the store, and files with a wanted digest are copied from there.

Wheels only, so that no code of a distribution runs. Address and credentials of the index are the host's own:
nothing of the notebook's configuration is sent. A distribution that the index has in another build gives
nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata

from monarch_nb._sync.env.donors import take_from
from monarch_nb._sync.env.manifest import Part
from monarch_nb._sync.env.store import Store
from monarch_nb._units import elapsed_text

MIN_BYTES = 1 << 20
"""Less missing content of a distribution is sent: to ask an index takes longer."""
MAX_AT_ONCE = 4
INSTALL_S = 600.0
"""Limit for one distribution."""


@dataclass(frozen=True)
class FromIndex:
    """The content that a host has got from its package index.

    Attributes:
        taken: by sha256, the size of content.
        problem: why a distribution couldn't be had; "" if all could.
    """

    taken: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""


def take_from_index(
    store: Store, parts: Sequence[Part], missing: Mapping[str, int], python: str, limit_s: float
) -> FromIndex:
    """Copy missing content of distributions from this host's package index to the store.

    Args:
        missing: as `place.missing_content` has found it.
        python: version of the environment's interpreter: wheels for it are wanted.
        limit_s: for so long distributions are waited for, the largest first.

    Raises:
        StoreFull: if there's no room.
    """
    wanted = [part for part in parts if _is_distribution(part) and _lacks(part, missing) >= MIN_BYTES]
    wanted.sort(key=lambda part: -_lacks(part, missing))
    if not wanted:
        return FromIndex()
    installer = _installer(".".join(python.split(".")[:2]))
    if not installer:
        return FromIndex(problem="it has neither uv nor pip")
    deadline = time.monotonic() + limit_s
    folders = [store.new_folder() for _ in wanted]
    try:
        with ThreadPoolExecutor(MAX_AT_ONCE, "monarch_nb-package-index") as pool:
            problems = list(
                pool.map(lambda part, folder: _install(installer, part, folder, deadline), wanted, folders)
            )
        taken = take_from(store, wanted, missing, folders)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    return FromIndex(taken, next(filter(None, problems), ""))


def _is_distribution(part: Part) -> bool:
    return bool(part.version) and any(e.path.endswith(".dist-info/METADATA") for e in part.entries)


def _lacks(part: Part, missing: Mapping[str, int]) -> int:
    return sum(missing.get(content, 0) for content in {entry.content for entry in part.entries})


def _installer(version: str) -> list[str]:
    """Return the command that installs wheels for a version of Python; empty if this host has none."""
    common = ["--no-deps", "--only-binary", ":all:", "--quiet", "--python-version", version]
    uv = _uv()
    if uv is not None:
        return [uv, "pip", "install", "--python", sys.executable, *common]
    if _has_pip():
        pip = [sys.executable, "-m", "pip", "install", "--no-compile", "--no-input"]
        return [*pip, "--disable-pip-version-check", *common]
    return []


def _has_pip() -> bool:
    # Not `find_spec`: where setuptools is loaded, looking for pip takes distutils away from this process.
    return any(metadata.distributions(name="pip"))


def _uv() -> str | None:
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    return beside if os.access(beside, os.X_OK) else shutil.which("uv")


def _install(installer: Sequence[str], part: Part, folder: str, deadline: float) -> str:
    """Install a distribution into a folder; return why that can't be, or an empty text."""
    wanted = f"{part.name}=={part.version}"
    left_s = min(INSTALL_S, deadline - time.monotonic())
    if left_s <= 0:
        return f"{wanted}: it would come later than from here"
    try:
        done = subprocess.run(
            [*installer, "--target", folder, wanted],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=left_s,
            env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{wanted}: it wasn't there after {elapsed_text(left_s)}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"{wanted}: {error}"
    if done.returncode == 0:
        return ""
    said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return f"{wanted}: {said[-1] if said else f'the installer ended with status {done.returncode}'}"
