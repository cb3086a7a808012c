"""The retention time of a journal, in a file beside it, so that the cleanup needs no running mesh."""

from __future__ import annotations

import os
from contextlib import suppress

KEEP_S = 30 * 86400.0
"""How long a journal is kept by default."""
_FILE = "kept-for-seconds"


def keep_s(directory: str) -> float:
    """Return for how long the journal in a directory is kept after it was last written to."""
    with suppress(OSError, ValueError), open(os.path.join(directory, _FILE)) as file:
        return float(file.read())
    return KEEP_S


def set_keep_s(directory: str, seconds: float) -> None:
    """Say for how long the journal in a directory is kept.

    Raises:
        OSError: if that can't be written there.
    """
    with open(
        os.open(os.path.join(directory, _FILE), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
    ) as file:
        file.write(f"{seconds:g}")
