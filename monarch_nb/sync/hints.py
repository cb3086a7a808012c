"""What to type when a rank lacks what is here: a module of the workspace, or a file at the notebook's
path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import PathFinder

from monarch_nb import exceptions
from monarch_nb._client import session as sessions
from monarch_nb._client.session import Session
from monarch_nb._protocol.programs import Status
from monarch_nb._reload.loaded import is_library
from monarch_nb.exceptions import MeshError, RankFailure
from monarch_nb.sync.following import known_workspaces

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_FILE = re.compile(r"No such file or directory: '(/[^']*)'")


def install() -> None:
    """Have errors of ranks say it."""
    if advice not in exceptions.ADVISERS:
        exceptions.ADVISERS.append(advice)


def advice(failures: Sequence[RankFailure]) -> str:
    """Return what is to be said about failures; "" if nothing is.

    Only programs have hints that use other hosts, some of which don't see this machine's files.
    """
    found = [
        _of_module(f) or _of_file(f)
        for f in failures
        if f.type in ("ModuleNotFoundError", "FileNotFoundError")
    ]
    return next(filter(None, found), "") if any(found) and _may_see_other_files() else ""


def _may_see_other_files() -> bool:
    known = [(known_workspaces(session), session) for session in sessions.open_sessions()]
    if not any(_has_other_hosts(session) for _, session in known):
        return False
    return not any(spaces is not None and spaces.is_shared_by_all() for spaces, _ in known)


def _has_other_hosts(session: Session) -> bool:
    with suppress(MeshError):  # it has just ended
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
    top = module.partition(".")[0]
    with suppress(Exception):  # finders of the user's may raise anything
        spec = PathFinder.find_spec(top)
        places = (
            [spec.origin]
            if spec is not None and spec.origin
            else list(spec.submodule_search_locations or ())
            if spec
            else []
        )
        return next((place for place in places if not is_library(place)), "")
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
