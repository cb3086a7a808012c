"""Finds source files for the lines that tracebacks show.

Code may go by the name of any file, and `linecache` reads what it's told: /dev/zero without end, a pipe that
nobody writes to for ever. So what isn't a file of bearable size isn't read, neither by ranks nor by host
processes, which show the stacks of ranks that can't.
"""

from __future__ import annotations

import linecache
import os
import stat
from typing import Any

from monarch_nb._frames.elsewhere import local_path

MAX_SOURCE_BYTES = 64 << 20
MAX_LINE = 120

_read = linecache.updatecache


def guard() -> None:
    """Keep linecache, and so tracebacks, from reading files that aren't source."""
    linecache.updatecache = _read_if_source


def _read_if_source(filename: str, module_globals: dict[str, Any] | None = None) -> list[str]:
    path = local_path(filename)
    if not may_be_source(path):
        return []
    if path == filename:
        return _read(filename, module_globals)
    lines = _read(path)
    if path in linecache.cache:  # the source is known by the notebook's path, and read where it lies
        linecache.cache[filename] = linecache.cache.pop(path)
    return lines


def may_be_source(filename: str) -> bool:
    """Say whether a file can be read as source. One that isn't there can: there may be other ways to its
    lines.
    """
    try:
        found = os.stat(filename)
    except (OSError, ValueError):
        return True
    return stat.S_ISREG(found.st_mode) and found.st_size <= MAX_SOURCE_BYTES


def source_line(file: str, line: int) -> str:
    """Return a line of source, without its indentation and not too long."""
    return linecache.getline(file, line).strip()[:MAX_LINE]
