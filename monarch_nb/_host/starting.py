"""Starts a host process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, TypedDict

from monarch_nb._host.config import HostConfig
from monarch_nb._wire import open_files

PROCESS_JOB = "process"
"""Kind of hosts that are processes on the controller's own machine: the controller can start one by
itself.
"""

PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""Directory that this package is imported from."""

RANK_VARIABLE = "MONARCH_NB_RANK"
"""Variable that tells a fresh interpreter which rank to be: {"path": module path, "fd": of the specification,
"parent": pid of the host process, "pythonpath": PYTHONPATH before}.
"""

HUGE_PAGES = ("THP_MEM_ALLOC_ENABLE", "1")
"""Variable with which torch asks for huge pages for tensors of 2 MiB or more: another process then copies
them at the speed of memory, not at a third of it.
"""

RANKS_PER_REQUEST = 32
"""Number of ranks in one request to the zygote: each needs two descriptors in the request."""


class ZygoteRequest(TypedDict, total=False):
    """A request of a host process to its zygote: JSON with descriptors beside it. It is one of these four.

    Attributes:
        ranks: ranks to fork: an `OwnSpec` each. Sent along: their `SharedSpec`, then two outputs for each.
            `imports`: modules to import before.
        adopt: process groups of ranks that the previous zygote has forked.
        move: whether to take on the settings of the program that has taken the controller: `Belongings`, sent
            along.
        retire: whether to end; the ranks live on.
    """

    ranks: list[Any]
    imports: list[str]
    adopt: list[int]
    move: bool
    retire: bool


class ZygoteAnswer(TypedDict, total=False):
    """A message of a zygote to its host process, as JSON.

    Attributes:
        ready: it can fork.
        warm: it has imported everything that ranks need; `modules`: what that is, by directory.
        proc, pid: a rank that was forked; or `failure`: why it couldn't be.
        groups: process groups of the ranks that it has forked: its last message, after `retire`.
    """

    ready: bool
    warm: bool
    modules: dict[str, list[str]]
    proc: int
    pid: int
    failure: str
    groups: list[int]


_CODE = "import sys; sys.path[:0] = sys.argv[1:]; from monarch_nb._host.main import main; main()"


def host_command() -> list[str]:
    """Return the command line of a host process; it takes its configuration from standard input.

    It imports nothing from the working directory: a file of the user's there that is named like a module of
    Python's would take that one's place.
    """
    return [sys.executable, "-P", "-c", _CODE, PACKAGE_ROOT]


def failure_to_start(process: subprocess.Popen[bytes]) -> str:
    """Wait until a host process with pipes as its outputs serves.

    Returns:
        An empty text; or why it doesn't serve: then it has ended, or was killed.
    """
    assert process.stdout and process.stderr
    said = process.stdout.readline()
    if said == b"ready\n":
        process.stdout.close()
        process.stderr.close()
        return ""
    if said:  # whatever has written that, the process may go on, and would never say more
        process.kill()
    error = process.stderr.read().decode(errors="replace").strip()
    unexpected = f"it wrote {said!r} where 'ready' was expected. " if said else ""
    return f"the host process did not start (exit code {process.wait()}): {unexpected}{error}".rstrip(": ")


def start_host_process(
    config: HostConfig, env: Mapping[str, str], output: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a host process, in a session of its own, and give it its configuration.

    Args:
        env: its environment.
        output: where its two output streams go, as `Popen` takes it.

    Raises:
        OSError: if it can't be started.
    """
    process = subprocess.Popen(
        host_command(),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
        env=dict(env),
    )
    open_files.restore_for(process.pid)  # before it has its configuration, and raises the limit itself
    assert process.stdin is not None
    process.stdin.write(config.encode())
    process.stdin.close()
    return process
