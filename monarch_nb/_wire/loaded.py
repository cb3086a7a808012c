"""Modules that are there already: looked at without importing them."""

from __future__ import annotations

import sys
from typing import Any


def loaded(name: str) -> Any:
    """Return a module if it's imported, else None; also while another thread is importing it: then parts of
    it are missing, and nobody has anything of it yet.
    """
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module
