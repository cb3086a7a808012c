"""In the virtual machine torch takes a minute to import, and nothing there needs it: interpreters that
start with this folder on their path have none.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any


class NoTorch(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError("torch is kept out here", name="torch")


sys.meta_path.insert(0, NoTorch())
