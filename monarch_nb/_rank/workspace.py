"""Folders of the notebook that have another path on this rank's machine: modules are imported from there, and
it is the working directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import invalidate_caches

from monarch_nb._frames import elsewhere


def adopt(pairs: Sequence[elsewhere.Pair], cwd: str) -> None:
    """Find folders of the notebook's where they are from now on.

    Args:
        pairs: as the notebook knows them, and where they lie here; those that aren't there (the host was
            replaced) don't count.
        cwd: where the notebook works: the rank goes to that folder's copy, unless it has gone somewhere
            itself.
    """
    here = [pair for pair in pairs if os.path.isdir(pair[1])]
    if not here or set(here) <= set(elsewhere.known_pairs()):
        invalidate_caches()  # files may be new
        return
    stands_as_started = not cwd or _stands_at(cwd) or not os.path.isdir(cwd)
    elsewhere.learn(here)
    sys.path[:] = [elsewhere.local_path(path) if isinstance(path, str) else path for path in sys.path]
    invalidate_caches()
    moved = elsewhere.local_path(cwd)
    if stands_as_started and moved != cwd and os.path.isdir(moved) and not _is_in_a_copy():
        os.chdir(moved)


def _stands_at(folder: str) -> bool:
    with suppress(OSError):
        return os.path.samefile(folder, ".")
    return False


def _is_in_a_copy() -> bool:
    with suppress(OSError):
        at = os.getcwd()
        return elsewhere.notebook_path(at) != at
    return False
