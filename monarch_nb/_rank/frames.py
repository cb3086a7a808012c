"""What a frame's file is to people: cells go by their number."""

from __future__ import annotations

import linecache
import re

MAX_LINE = 120
_CELL = re.compile(r"ipython-input-(\d+)-")


def cell_number(file: str) -> int | None:
    """Return the number of the cell that a file name stands for; None if it's a file.

    >>> cell_number("<ipython-input-5-ab>"), cell_number("train.py")
    (5, None)
    """
    found = _CELL.search(file)
    return int(found[1]) if found else None


def source_line(file: str, line: int) -> str:
    """Return a line of source, without its indentation and not too long."""
    return linecache.getline(file, line).strip()[:MAX_LINE]
