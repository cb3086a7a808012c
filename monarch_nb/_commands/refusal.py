"""Turns any failure of a command into one clear error: what was typed, what is wrong with it, what to type.
Frames of this package are left out.

Most errors say so themselves. The rest is what the system has refused (a file that can't be written), and
what nobody has thought of, which names the place in this package that has raised, so that it can be mended.
"""

from __future__ import annotations

import os
import traceback

from monarch_nb._tracebacks import ShowsItself, headline
from monarch_nb.exceptions import MeshError, RankSetError


def explanation(error: BaseException, typed: str) -> str:
    """Return an error in words, without a traceback.

    Args:
        typed: what has led to it: `%mesh export x.py`, `monarch-nb start`.
    """
    if isinstance(error, MeshError | RankSetError):
        return str(error)
    if isinstance(error, OSError):
        return f"{typed}: {_refused(error)}"
    # errors of the last type are raised on purpose
    if isinstance(error, ValueError | LookupError | ShowsItself):
        return f"{typed}: {error}"
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({place[0].filename}, line {place[0].lineno})" if place else ""
    return f"{typed}: {type(error).__name__}: {error}{where}. That's a fault of monarch_nb; please report it"


_VARIABLES = ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "XDG_RUNTIME_DIR", "TMPDIR", "HOME")
"""Variables that determine where this user's files and sockets are."""


def _refused(error: OSError) -> str:
    """Return a message about an error of the operating system, with a remedy."""
    files = [os.fsdecode(f) for f in (error.filename, error.filename2) if isinstance(f, str | bytes)]
    if not files and isinstance(error, FileNotFoundError) and not _has_working_directory():
        return "the working directory has been removed: change to one that exists, then type it again"
    what = (
        f"{error.strerror}{': ' if files else ''}{' and '.join(map(repr, files))}"
        if error.strerror
        else str(error)
    )
    folders = {v: os.environ[v].rstrip("/") for v in _VARIABLES if os.environ.get(v)}
    holding = [
        v for v, folder in folders.items() if any(f == folder or f.startswith(f"{folder}/") for f in files)
    ]
    if holding:
        variable = max(holding, key=lambda v: len(folders[v]))
        return f"{what}. {variable} is {folders[variable]!r}: have it name a directory that you can write to"
    return f"{what}. {_ADVICE.get(type(error), 'Mend that, then type it again')}"


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


_ADVICE: dict[type[OSError], str] = {
    FileNotFoundError: "Name a file in a directory that exists",
    NotADirectoryError: "Name a file in a directory that exists",
    IsADirectoryError: "Name a file, not a directory",
    PermissionError: "Name a file that you can write",
}


def clear_error(error: Exception, typed: str) -> Exception:
    """Return the error to show in a notebook, without frames of this package: `error` itself where its text
    is enough, otherwise a new one.
    """
    own = getattr(type(error), "_render_traceback_", None)
    if isinstance(error, MeshError | RankSetError):
        if own is ShowsItself._render_traceback_:
            vars(error)["_render_traceback_"] = headline(error).splitlines
        return error
    found = MeshError(explanation(error, typed))
    found.__cause__ = error
    vars(found)["_render_traceback_"] = f"{type(error).__name__}: {found}".splitlines
    return found
