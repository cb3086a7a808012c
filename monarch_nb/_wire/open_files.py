"""The limit on how many files this process may have open (RLIMIT_NOFILE).

Usually a process may have 1,024, and may raise that to a much higher hard limit by itself; it isn't more by
default since `select()` fails in programs that open more. This package doesn't call that: host processes
raise their limit, as they open four files for a rank. Ranks and other children that run code of the user's
get the limit that there was before. A program that uses meshes keeps its limit until it has used half of it.
"""

from __future__ import annotations

import resource
import sys
from contextlib import suppress

_MOST = 1 << 20
"""As many as a process needs at most: some libraries have a table of as many entries as may be open."""

_former = -1
"""The soft limit before it was raised here; -1: it wasn't."""
_raise_from = sys.maxsize
"""The number of a new file from which on the limit is raised."""


def raise_limit() -> None:
    """Let this process open as many files as the hard limit allows."""
    global _former, _raise_from
    _raise_from = sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with suppress(OSError, ValueError):  # a sandbox forbids it: it stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _former = soft


def raise_when_needed() -> None:
    """Raise the limit as soon as half of the files are open."""
    global _raise_from
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if _former < 0 and soft != resource.RLIM_INFINITY:
        _raise_from = soft // 2


def note_open(fd: int) -> None:
    """Look at the number of a file that was just opened: the kernel gives out the lowest that is free."""
    if fd >= _raise_from:
        raise_limit()


def restore_for(pid: int) -> None:
    """Give a child process the limit that this one had before it was raised."""
    if _former < 0:
        return
    with suppress(OSError):  # it has ended already
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_former, hard))
