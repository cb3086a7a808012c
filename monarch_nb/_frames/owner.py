"""Finds the owner of a frame's code by the location of its file.

The folders are those of what this process has imported: a user's own file is the user's, whatever its
folder is called. Text from other machines has file names of other folders; those are known by how they end.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from glob import escape
from types import FrameType, ModuleType

from monarch_nb._frames.cells import cell_number


class Owner(Enum):
    """The owner of a piece of code."""

    USER = "user"
    """Code of a cell, or in a file that belongs to none of the others."""
    EXECUTED = "executed"
    """Code without a file: of `exec`, of a dataclass. It is the user's; but the line that runs it tells
    more.
    """
    LIBRARY = "library"
    """The standard library, or an installed package."""
    SHELL = "shell"
    """IPython, which runs cells."""
    PACKAGE = "package"
    """This package."""


HIDDEN = frozenset({Owner.SHELL, Owner.PACKAGE})
"""Owners whose frames are hidden in tracebacks and stacks: they say nothing about the user's program."""

_NAME = __package__.partition(".")[0]
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_FROZEN = "<frozen "
_INSTALLED = ("site-packages", "dist-packages")
_ELSEWHERE_SHELL = re.compile(r"/(site|dist)-packages/IPython/")
_ELSEWHERE_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/")
_START = "<string>"
"""File name of the program that becomes a rank, under `python -c`."""


def owner_of(frame: FrameType) -> Owner:
    """Return the owner of the code that a frame runs."""
    found = owner_of_file(frame.f_code.co_filename)
    if found is not Owner.EXECUTED:
        return found
    return Owner.PACKAGE if _is_start(frame) else _owner_of_executed(module_of(frame))


@lru_cache(maxsize=4096)
def owner_of_file(file: str) -> Owner:
    """Return the owner of a file that code of this process was loaded from."""
    if file.startswith(_PACKAGE):
        return Owner.PACKAGE
    if file.startswith(_shell_folder()):
        return Owner.SHELL
    if file.startswith((_STANDARD_LIBRARY, _FROZEN, *_folders_of_installed())):
        return Owner.LIBRARY
    return _of_the_user(file)


@lru_cache(maxsize=4096)
def owner_elsewhere(file: str) -> Owner:
    """Return the owner of a file, given a name that may be another machine's.

    Of this package is what is called as one of its modules; installed is what lies where packages do.
    """
    if f"/{_NAME}/" in file and file.rpartition(f"/{_NAME}/")[2] in _modules():
        return Owner.PACKAGE
    if _ELSEWHERE_SHELL.search(file):
        return Owner.SHELL
    if file.startswith(_FROZEN) or _ELSEWHERE_LIBRARY.search(file):
        return Owner.LIBRARY
    return _of_the_user(file)


def is_users(frame: FrameType) -> bool:
    """Say whether a frame is in a cell, or in a file of the user's, so that its line can be looked up."""
    return owner_of(frame) is Owner.USER


def is_hidden(file: str) -> bool:
    """Say whether frames of a file are hidden: those of this package, and of the shell that runs cells."""
    return owner_of_file(file) in HIDDEN


def users_index(frames: Sequence[FrameType]) -> int | None:
    """Return the index of the user's frame among a thread's frames, innermost first; None if there is none.

    That's the innermost one that can be looked up; if there's none, the innermost of code that has no file.
    """
    executed = None
    for i, frame in enumerate(frames):
        owner = owner_of(frame)
        if owner is Owner.USER:
            return i
        if owner is Owner.EXECUTED and executed is None:
            executed = i
    return executed


def warn_user(text: str) -> None:
    """Give a warning that names the user's innermost line."""
    warnings.warn(text, stacklevel=(users_index(frames_from(sys._getframe())) or 0) + 1)


def frames_from(frame: FrameType | None, limit: int = sys.maxsize) -> list[FrameType]:
    """Return a frame and its callers: innermost first, at most `limit`."""
    found: list[FrameType] = []
    while frame is not None and len(found) < limit:
        found.append(frame)
        frame = frame.f_back
    return found


def module_of(frame: FrameType) -> str:
    """Return the name of the module of a frame's code, or "". Runs no user code."""
    name = dict.get(frame.f_globals, "__name__")
    return name if type(name) is str else ""


def is_of_package(module: str) -> bool:
    """Say whether a module belongs to this package.

    >>> is_of_package("monarch_nb.actor.future"), is_of_package("monarch_nb_tools")
    (True, False)
    """
    return module == _NAME or module.startswith(f"{_NAME}.")


def is_module_elsewhere(file: str, module: str) -> bool:
    """Say whether a file, possibly of another machine, is a module of this package.

    >>> is_module_elsewhere("/opt/lib/monarch_nb/_transport/reader.py", "monarch_nb._transport.reader")
    True
    """
    return owner_elsewhere(file) is Owner.PACKAGE and file.endswith(f"/{module.replace('.', '/')}.py")


def hidden_patterns() -> tuple[str, ...]:
    """Return glob patterns for the files of hidden frames (`is_hidden`), and for frozen modules."""
    return (f"{escape(_PACKAGE)}*", f"{escape(_shell_folder())}*", f"{_FROZEN}*")


def _of_the_user(file: str) -> Owner:
    has_no_file = file.startswith("<") and cell_number(file) is None
    return Owner.EXECUTED if has_no_file else Owner.USER


def _owner_of_executed(module: str) -> Owner:
    """Return the owner of code without a file: whoever has written the module in whose name it runs."""
    if module in ("", "__main__"):
        return Owner.EXECUTED
    found = sys.modules.get(module)
    if not issubclass(type(found), ModuleType):
        return Owner.LIBRARY  # a namedtuple's generated code
    file = dict.get(ModuleType.__getattribute__(found, "__dict__"), "__file__")
    owner = owner_of_file(file) if type(file) is str else Owner.LIBRARY
    return Owner.EXECUTED if owner is Owner.USER else owner


def _is_start(frame: FrameType) -> bool:
    """Say whether a frame is the outermost one of a program started by `python -c`."""
    return frame.f_back is None and frame.f_code.co_filename == _START and frame.f_code.co_name == "<module>"


def _shell_folder() -> str:
    """Return the folder of IPython; empty if it isn't imported."""
    shell = sys.modules.get("IPython")
    file = getattr(shell, "__file__", None)
    return os.path.dirname(file) + os.sep if isinstance(file, str) else "<no IPython>"


def _folders_of_installed() -> Iterable[str]:
    """Return the folders on this process' path that packages are installed into."""
    folders = [path.rstrip(os.sep) for path in sys.path if isinstance(path, str)]
    return [folder + os.sep for folder in folders if os.path.basename(folder) in _INSTALLED]


@lru_cache(maxsize=1)
def _modules() -> frozenset[str]:
    """Return the files of this package, from its folder on: "actor/future.py"."""
    found: set[str] = set()
    for folder, _, files in os.walk(_PACKAGE):
        inside = folder[len(_PACKAGE) :].strip(os.sep).replace(os.sep, "/")
        found.update(f"{inside}/{file}".lstrip("/") for file in files if file.endswith(".py"))
    return frozenset(found)
