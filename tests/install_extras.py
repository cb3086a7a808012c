"""Installs extras of this package for its tests: what a registry lacks is left out by itself, and named.

What's installed isn't compiled to byte code: the Makefile does that.

usage: install_extras.py EXTRA [...]
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]


def main(extras: Sequence[str]) -> None:
    """Install extras; where one can't be had as a whole, its requirements one by one."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        known: dict[str, list[str]] = tomllib.load(file)["project"]["optional-dependencies"]
    for extra in extras:
        if can_install(known[extra], says_why=True):
            continue
        for requirement in known[extra]:
            if not can_install([requirement], says_why=False):
                print(f"{requirement} can't be installed here: tests that need it are skipped", flush=True)


def can_install(requirements: Sequence[str], *, says_why: bool) -> bool:
    """Install requirements beside what is there; say whether that was possible."""
    return (
        subprocess.run([*PIP, *requirements], stderr=None if says_why else subprocess.DEVNULL).returncode == 0
    )


if __name__ == "__main__":
    main(sys.argv[1:])
