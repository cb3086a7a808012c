"""A host that has `sh` and `tar`, the C library, and nothing else: a folder that is a shell's root directory,
in a mount namespace of its own. For which one must be root.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_ENTER = """#!/bin/sh
exec unshare --mount --uts sh -c '
    for each in proc dev {libraries}; do mount --bind "/$each" "{root}/$each" || exit 1; done
    hostname bare
    exec env -i HOME=/root PATH=/bin TERM=dumb {variables} {chroot} {root} "$@"' sh "$@"
"""


class BareHost:
    """A host of its own.

    Attributes:
        root: its root directory, as it's seen from here.
        command: runs a command there, and needs no quotes.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        self.root = folder / "root"
        for name in ("bin", "root", "proc", "dev", "tmp", "etc", _LIBRARIES.lstrip("/")):
            (self.root / name).mkdir(parents=True)
        (self.root / "tmp").chmod(0o1777)
        for link, target in (("lib", "usr/lib"), ("lib64", f".{_LIBRARIES}")):
            (self.root / link).symlink_to(target)
        for name in ("sh", "tar"):
            found = shutil.which(name)
            assert found is not None
            shutil.copy(os.path.realpath(found), self.root / "bin" / name)
        self.command = str(folder / "enter")
        text = _ENTER.format(
            root=self.root,
            libraries=_LIBRARIES.lstrip("/"),
            chroot=shutil.which("chroot"),
            variables=" ".join(f"{name}={value}" for name, value in variables.items()),
        )
        Path(self.command).write_text(text)
        os.chmod(self.command, 0o755)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command there."""
        return subprocess.run([self.command, *words], capture_output=True, text=True, check=False)

    def files(self) -> list[str]:
        """Return what is in the folders that it can write to: outside its store, nothing is expected."""
        return sorted(p.name for place in ("tmp", "root") for p in (self.root / place).iterdir())


def bare_host(folder: Path, **variables: str) -> BareHost:
    """Make a host; skip the test where that isn't allowed."""
    host = BareHost(folder, **variables)
    done = host.run("sh", "-c", "echo $HOME")
    if done.returncode:
        pytest.skip(f"no host of its own can be made here: {done.stderr.strip()}")
    assert done.stdout == "/root\n"
    assert re.search("not found", host.run("sh", "-c", "python3").stderr), "it has no Python"
    return host
