"""Installs extras of this package for its tests: what a registry lacks is left out by itself, and named.

What's installed isn't compiled to byte code: the Makefile does that.

usage: install_extras.py EXTRA [...]
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from install import install

ROOT = Path(__file__).parents[1]


def main(extras: Sequence[str]) -> None:
    """Install extras; where one can't be had as a whole, its requirements one by one."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        known: dict[str, list[str]] = tomllib.load(file)["project"]["optional-dependencies"]
    for extra in extras:
        if install(known[extra], says_why=True):
            continue
        for requirement in known[extra]:
            if not install([requirement], says_why=False):
                print(f"{requirement} can't be installed here: tests that need it are skipped", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
