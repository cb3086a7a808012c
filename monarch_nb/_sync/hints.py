"""Suggests commands when a rank lacks a file of this machine: a module of the workspace, or a file at the
notebook's path.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import PathFinder

from monarch_nb import exceptions
from monarch_nb._client import session as sessions
from monarch_nb._client.session import Session
from monarch_nb._protocol.programs import Status
from monarch_nb._reload.loaded import is_library
from monarch_nb._sync.following import known_workspaces
from monarch_nb.exceptions import MeshError, RankFailure

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_NAME = re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'")
_NO_ATTRIBUTE = re.compile(r"Can't get attribute '(?P<name>\w+)' on <module '(?P<module>[\w.]+)'")
_SEND_ENV = (
    "%mesh sync --env (mesh.sync(env=True)) brings hosts what is installed here, then %mesh restart; "
    "%mesh diff --env --hosts says what else differs"
)
_NO_FILE = re.compile(r"No such file or directory: '(/[^']*)'")


def install() -> None:
    """Install the advice about failures."""
    if advice not in exceptions.ADVISERS:
        exceptions.ADVISERS.append(advice)


def advice(failures: Sequence[RankFailure]) -> str:
    """Return advice about failures; "" if there is none.

    Only programs have hints that use other hosts, some of which don't see this machine's files.
    """
    packages = [_of_package(f) or _of_name(f) for f in failures]
    if any(packages):
        return next(filter(None, packages)) if _have_other_hosts() else ""
    found = [
        _of_module(f) or _of_file(f)
        for f in failures
        if f.type in ("ModuleNotFoundError", "FileNotFoundError")
    ]
    return next(filter(None, found), "") if any(found) and _may_see_other_files() else ""


def _of_package(failure: RankFailure) -> str:
    """Return advice about a package that is installed here and missing on the rank; the error of a value that
    can't be unpickled for that reason names it, too.
    """
    found = _NO_MODULE.search(failure.message)
    file = _place_of(found[1]) if found is not None else ""
    if found is None or not file or not is_library(file):
        return ""
    return f"{_installed_as(found[1])} is installed here ({file}), and not where that rank runs: {_SEND_ENV}"


def _of_name(failure: RankFailure) -> str:
    """Return advice about a package whose version on the rank lacks a name that this program's version
    has.
    """
    found = _NO_NAME.search(failure.message) or _NO_ATTRIBUTE.search(failure.message)
    module = sys.modules.get(found["module"]) if found is not None else None
    file = getattr(module, "__file__", None) or ""
    if found is None or not is_library(file) or not file or not hasattr(module, found["name"]):
        return ""
    what = _installed_as(found["module"])
    return f"{what} has {found['name']} here ({file}), and what that rank has hasn't: {_SEND_ENV}"


def _installed_as(module: str) -> str:
    """Return the distribution that a module is of, and its version; the module's name if none says so."""
    top = module.partition(".")[0]
    from importlib import metadata  # 10 ms with what it imports, for programs that never need it

    with suppress(Exception):  # metadata of the user's may be anything
        name = metadata.packages_distributions()[top][0]
        return f"{name} {metadata.version(name)}"
    return top


def _have_other_hosts() -> bool:
    return any(_has_other_hosts(session) for session in sessions.open_sessions())


def _may_see_other_files() -> bool:
    known = [(known_workspaces(session), session) for session in sessions.open_sessions()]
    if not any(_has_other_hosts(session) for _, session in known):
        return False
    return not any(spaces is not None and spaces.is_shared_by_all() for spaces, _ in known)


def _has_other_hosts(session: Session) -> bool:
    with suppress(MeshError):  # the mesh has just ended
        return len(session.request(Status()).hosts) > 1
    return False


def _of_module(failure: RankFailure) -> str:
    found = _NO_MODULE.search(failure.message)
    file = _find(found[1]) if found is not None else ""
    return (
        (
            f"{found[1]} is here ({file}): %mesh sync (mesh.sync()) sends your files to hosts that don't "
            "have them"
        )
        if found and file
        else ""
    )


def _find(module: str) -> str:
    """Return the file of a module of the user's that this program would import; "" if there's none."""
    place = _place_of(module)
    return place if place and not is_library(place) else ""


def _place_of(module: str) -> str:
    """Return the file, or the folder, of a module that this program would import; "" if there's none.
    Nothing is imported for that.
    """
    names = module.split(".")
    with suppress(Exception):  # finders of the user's may raise anything
        spec = PathFinder.find_spec(names[0])
        for n in range(2, len(names) + 1):
            below = [] if spec is None else spec.submodule_search_locations or []
            spec = PathFinder.find_spec(".".join(names[:n]), below)
        places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
        places = [place for place in places if place]
        return next((place for place in places if not is_library(place)), next(iter(places), ""))
    return ""


def _of_file(failure: RankFailure) -> str:
    found = _NO_FILE.search(failure.message)
    for session in sessions.open_sessions() if found is not None else ():
        spaces = known_workspaces(session)
        if found is not None and spaces is not None and spaces.is_elsewhere(found[1]):
            return (
                f"{found[1]} is a path of this machine; other hosts have the workspace in another "
                "folder, which ranks there work in: use a path relative to the working directory; or "
                "%mesh sync --same-path"
            )
    return ""
