"""Processes of ours on this machine, and waiting for their end."""

from __future__ import annotations

import os
from pathlib import Path

from monarch_nb._wire.process import wait_until_gone

PATIENCE_S = 45.0
TAG = "MONARCH_NB_TEST_RUN", str(os.getpid())
"""What the environment of all that a run of the tests starts has."""


def mesh_processes() -> dict[int, str]:
    """Return pid and name of every host process, zygote and rank of this test run, zombies left out."""
    mark = "=".join(TAG).encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name = (entry / "comm").read_text().strip()
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if name.startswith("mnb-") and state not in "ZX" and mark in environment.split(b"\0"):
                found[int(entry.name)] = name
    return found


def wait_for_exit(pid: int, timeout_s: float = PATIENCE_S) -> bool:
    """Wait until a process has ended, by its pidfd."""
    return wait_until_gone(pid, timeout_s)
