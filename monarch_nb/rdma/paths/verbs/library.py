"""Loads pyverbs, the Python binding of libibverbs, wherever it is installed, and finds its constants in any
of its versions.

Linux distributions have it for their own Python (`python3-pyverbs`), in a folder that a virtual environment
doesn't look into. It's then loaded from there, and nothing else is: the folder doesn't come onto the search
path.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import threading
from collections.abc import Sequence
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

INSTALL = (
    "apt-get install python3-pyverbs ibverbs-providers (RHEL: dnf install python3-pyverbs), "
    "or pip install pyverbs where libibverbs' headers are"
)
_ENUMS = ("pyverbs.enums", "pyverbs.libibverbs_enums")
"""Names of the module of constants before version 59, and since."""
_lock = threading.RLock()


class LibraryMissing(Exception):
    """The error raised when pyverbs can't be used; its text gives a remedy."""


def distribution_folders() -> list[str]:
    """Return the folders where Linux distributions keep packages of the system's Python."""
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [
        "/usr/lib/python3/dist-packages",
        f"/usr/lib64/{minor}/site-packages",
        f"/usr/lib/{minor}/site-packages",
    ]


class Constants:
    """The constants of libibverbs by name: `constants.IBV_QPT_RC`. Depending on the version they are in the
    module itself, or in its enum classes.
    """

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> int:
        classes = (c for c in vars(self._module).values() if isinstance(c, type))
        for place in (self._module, *classes):
            if hasattr(place, name):
                value = int(getattr(place, name))
                setattr(self, name, value)
                return value
        raise AttributeError(name)


class Library:
    """The part of pyverbs that this package uses."""

    def __init__(self, folders: Sequence[str]) -> None:
        package = _load_package(folders)
        self.folder = next(iter(package.__path__))
        self.constants = Constants(_first_of(_ENUMS))
        modules = {
            name: importlib.import_module(f"pyverbs.{name}")
            for name in ("addr", "cq", "device", "mr", "pd", "pyverbs_error", "qp", "wr")
        }
        self.errors: tuple[type[Exception], ...] = (modules["pyverbs_error"].PyverbsError,)
        for module, names in _CLASSES.items():
            for name in names:
                setattr(self, name, getattr(modules[module], name, None))
        self.forgets_to_free = hasattr(self.SGE, "__dealloc")
        """Whether work requests must be closed by hand: versions with this spelling of `__dealloc__` never
        free them.
        """

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"pyverbs has no {name}")


_CLASSES = {
    "addr": ("AHAttr", "GID", "GlobalRoute"),
    "cq": ("CQ", "CompChannel"),
    "device": ("Context",),
    "mr": ("MR", "DmaBufMR"),
    "pd": ("PD",),
    "qp": ("QP", "QPAttr", "QPCap", "QPInitAttr"),
    "wr": ("SGE", "SendWR"),
}


def _load_package(folders: Sequence[str]) -> ModuleType:
    if "pyverbs" in sys.modules:
        return sys.modules["pyverbs"]
    spec = importlib.util.find_spec("pyverbs") or next(
        filter(None, (PathFinder.find_spec("pyverbs", [f]) for f in folders)), None
    )
    if spec is None or spec.loader is None:
        raise LibraryMissing(f"pyverbs is not installed: {INSTALL}")
    if PathFinder.find_spec("pyverbs.device", list(spec.submodule_search_locations or [])) is None:
        where = next(iter(spec.submodule_search_locations or []), spec.origin)
        raise LibraryMissing(
            f"pyverbs in {where} is built for another Python than this one "
            f"({sysconfig.get_config_var('SOABI')}): run the distribution's own Python, or pip "
            "install pyverbs"
        )
    package = importlib.util.module_from_spec(spec)
    sys.modules["pyverbs"] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules["pyverbs"]
        raise
    return package


def _first_of(names: Sequence[str]) -> ModuleType:
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise LibraryMissing(f"this pyverbs has none of {', '.join(names)}: install another version")


_found: Library | None = None


def library(folders: Sequence[str] | None = None) -> Library:
    """Return pyverbs, loaded at the first call.

    Raises:
        LibraryMissing: if pyverbs can't be loaded; it names the package to install.
    """
    global _found
    with _lock:
        if _found is None:
            try:
                _found = Library(distribution_folders() if folders is None else folders)
            except ImportError as error:  # one of its shared libraries is missing, or doesn't fit
                raise LibraryMissing(f"pyverbs can't be loaded ({error}): {INSTALL}") from None
        return _found
