"""Detects a notebook that runs without a user, by nbclient, papermill or nbconvert: its meshes end with its
kernel then, because no user comes back to them.

Two signs together, so that neither a private choice of settings nor an odd front end is taken for a run: such
runners start a kernel whose history is in memory (nbclient's default; nbconvert, papermill and voila are
built on it), and they say with each cell that nobody can answer `input()`, which every front end with a
person before it can. MONARCH_NB_WITH_KERNEL=1 or 0 in the environment decides instead.
"""

from __future__ import annotations

import os
import sys

_IN_MEMORY = ":memory:"


def is_run_by_a_program() -> bool:
    """Return whether this is a kernel that a program has started to run a notebook from end to end."""
    value = os.environ.get("MONARCH_NB_WITH_KERNEL", "")
    if value in ("0", "1"):
        return value == "1"
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    if shell is None or kernel is None:
        return False
    return getattr(shell.history_manager, "hist_file", None) == _IN_MEMORY and not getattr(
        kernel, "_allow_stdin", True
    )
