"""What a mesh may be called: its name is part of file names, of a variable's name, and of every message."""

from __future__ import annotations

from monarch_nb.exceptions import MeshUsageError

MAX_NAME_CHARS = 64


def check_mesh_name(name: str) -> str:
    """Return a mesh's name, or refuse it.

    Raises:
        MeshUsageError: saying what a name is.
    """
    if not name.replace("-", "_").isidentifier() or not name.isascii() or len(name) > MAX_NAME_CHARS:
        shown = repr(name) if len(name) <= MAX_NAME_CHARS else f"{name[:20]!r}... ({len(name)} characters)"
        raise MeshUsageError(
            f"a mesh's name is letters, digits, '-' and '_', not starting with a digit, at most {MAX_NAME_CHARS} characters; not {shown}"
        )
    return name
