"""A machine that is reached by ssh only, and this one: both are this one, and the far one's programs have
directories of their own, which only an interpreter of its own knows.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import sshd

T = 120


def directories(folder: Path) -> dict[str, str]:
    found = {"JUPYTER_RUNTIME_DIR": str(folder / "run"), "JUPYTER_DATA_DIR": str(folder / "data")}
    for path in found.values():
        os.makedirs(path, 0o700)
    return found


@dataclass
class Machines:
    """The near machine and the far one.

    Attributes:
        server: the far one's sshd.
        python: the interpreter there.
        env: of programs here.
    """

    server: sshd.Sshd
    python: str
    env: Mapping[str, str]

    def here(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "monarch_nb", *command],
            capture_output=True, text=True, env=self.env, timeout=T,
        )  # fmt: skip

    def there(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-P", "-m", "monarch_nb", *command], capture_output=True, text=True, timeout=T
        )

    def attach(self, name: str, *more: str) -> subprocess.CompletedProcess[str]:
        return self.here("attach", f"login:{name}", "--python", self.python, *more)

    def roads(self) -> list[psutil.Process]:
        """Return the ssh processes that lead to a mesh there."""
        return [p for p in psutil.process_iter(["cmdline"]) if self._is_road(p.info["cmdline"] or [])]

    def _is_road(self, words: list[str]) -> bool:
        return str(self.server.config) in words and "ExitOnForwardFailure=yes" in " ".join(words)

    def cut(self) -> None:
        """End all connections to the far machine, and let none in."""
        self.server.process.terminate()
        self.server.process.wait(10)
        for road in self.roads():
            road.kill()


@contextmanager
def machines_in(folder: Path) -> Iterator[Machines]:
    """Return the two, with directories below an empty folder; end the meshes `dev` and `other` at the end."""
    server = sshd.Sshd(folder / "sshd", ["login"])
    env = {**os.environ, **directories(folder / "near"), "PATH": server.put_on_path(folder / "bin")}
    lines = [f"export {name}={value}" for name, value in directories(folder / "far").items()]
    python = folder / "bin" / "python"
    python.write_text("\n".join(["#!/bin/sh", *lines, f'exec {sys.executable} "$@"', ""]))
    python.chmod(0o755)
    found = Machines(server, str(python), env)
    try:
        yield found
    finally:
        for name in ("dev", "other"):
            found.here("stop", name)
            found.there("stop", name)
        server.close()
