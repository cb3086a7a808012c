"""Writes to the variables of functions that run."""

from __future__ import annotations

import ctypes
import sys
from types import FrameType


def keep_variables(frame: FrameType) -> None:
    """Let the function of a frame have what was assigned in `frame.f_locals`.

    Before Python 3.13, these are a copy: whoever reads `frame.f_locals` makes it anew, and what was assigned
    in it, but not yet written back, is lost. pdb itself reads it in `longlist` (3.11.0 to 3.11.3), and other
    threads do so to say where a rank is.

    Source: https://docs.python.org/3/c-api/frame.html, PEP 667.

    Example:
        >>> def f():
        ...     x = 1
        ...     sys._getframe().f_locals["x"] = 2
        ...     keep_variables(sys._getframe())
        ...     return x
        >>> f()
        2
    """
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
