"""Registers the joblib backend as soon as joblib is imported, also after a mesh was started."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_JOBLIB, _BACKEND = "joblib", "monarch_nb.mesh.tasks.joblib"


def register_joblib() -> None:
    """Have joblib know the backend `monarch_nb`: now, if it's loaded, else with its import."""
    if _JOBLIB in sys.modules:
        importlib.import_module(_BACKEND)
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


class _Watch(MetaPathFinder):
    """Finds joblib where it is, with a loader that registers the backend afterwards; nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _JOBLIB:
            return None
        sys.meta_path.remove(self)
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and found.loader is not None:
            found.loader = _Registering(found.loader)
        return found


class _Registering(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # as if this had never been here
        self._loader.exec_module(module)
        importlib.import_module(_BACKEND)
