"""A file system of one MiB, which is filled and emptied again: a real one, for which one must be root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted file system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stuffing = path / "stuffing"

    def fill(self) -> None:
        """Leave no byte free."""
        with suppress(OSError), open(self._stuffing, "ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        """Take away what has filled it."""
        self._stuffing.unlink()


@contextmanager
def small_disk(path: Path, size: str = "1m") -> Iterator[SmallDisk]:
    """Mount a small file system at `path`; skip the test where that isn't allowed."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", path],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
