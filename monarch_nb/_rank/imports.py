"""Patches modules of other packages when they are imported, or at once if they are imported already."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Patch = Callable[[Any], object]
"""A function that is called with a module that has just been imported."""


def patch_imports(patches: Mapping[str, Patch]) -> None:
    """Register patches that are applied to modules as soon as they are imported.

    Args:
        patches: what changes them, by their names.
    """
    for name, patch in patches.items():
        if name in sys.modules:
            patch(sys.modules[name])
    sys.meta_path.insert(0, _Finder(patches))


class _Finder(MetaPathFinder):
    """The import hook that applies patches to modules when they are imported."""

    def __init__(self, patches: Mapping[str, Patch]) -> None:
        self._patches = patches

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        patch = self._patches.get(fullname)
        found = PathFinder.find_spec(fullname, path, target) if patch is not None else None
        if found is not None and found.loader is not None and patch is not None:
            found.loader = _PatchingLoader(found.loader, patch)
        return found


class _PatchingLoader(Loader):
    def __init__(self, loader: Any, patch: Patch) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # who asks for it finds the module's own
        self._loader.exec_module(module)
        self._patch(module)
