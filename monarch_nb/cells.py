"""Cells by the names that a notebook gives them, `Cell In[5]`: their code has file names that are made up,
and that tracebacks of ranks bring along.
"""

from __future__ import annotations

import re
import sys

_FILE = re.compile(r'File "([^"\n]+)", line (\d+)')


def name_of(filename: str) -> str | None:
    """Return what this notebook calls the cell that has a file name; None if it's none of its cells."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    found = shell.compile.format_code_name(filename) if shell is not None else None
    return None if found is None else " ".join(found)


def with_names(traceback: str) -> str:
    """Return a traceback's text with the cells of this notebook by their names.

    >>> with_names('File "train.py", line 3, in step')
    'File "train.py", line 3, in step'
    """

    def named(match: re.Match[str]) -> str:
        name = name_of(match[1])
        return match[0] if name is None else f"{name}, line {match[2]}"

    return _FILE.sub(named, traceback)
