"""Sets of CPUs, or of NUMA nodes, in the syntax of `taskset` and `numactl`."""

from __future__ import annotations

import re

_PIECE = re.compile(r"(\d+)(?:-(\d+))?\Z")
ALL = "all"
MAX_NUMBER = 1 << 16


def parse_cpu_set(text: str) -> tuple[int, ...] | None:
    """Return the numbers that a set names, sorted; None for `all`.

    >>> parse_cpu_set("0-3,8")
    (0, 1, 2, 3, 8)

    Raises:
        ValueError: if it's none.
    """
    if text.strip() == ALL:
        return None
    found: set[int] = set()
    for piece in text.split(","):
        match = _PIECE.match(piece.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if not first <= last < MAX_NUMBER:
            raise ValueError(f"{text!r} is no set of numbers such as '0-3,8', nor 'all'")
        found.update(range(first, last + 1))
    return tuple(sorted(found))
