"""Checks the names of meshes: a name is part of file names, of a variable's name, and of every message."""

from __future__ import annotations

import re

from monarch_nb.exceptions import MeshUsageError

MAX_NAME_CHARS = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def check_mesh_name(name: str) -> str:
    """Return a mesh's name if it's valid.

    Raises:
        MeshUsageError: saying what a name is.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        is_short = not isinstance(name, str) or len(name) <= MAX_NAME_CHARS
        shown = repr(name) if is_short else f"{name[:20]!r}... ({len(name)} characters)"
        raise MeshUsageError(
            "a mesh's name is letters, digits, '-' and '_', starting with a letter, at most "
            f"{MAX_NAME_CHARS} characters; not {shown}"
        )
    return name
