"""What can't be done is said in one clear error: what was typed, what is wrong with it, what to type. Frames of this package tell a reader nothing.

Most errors say so themselves. The rest is what the system has refused (a file that can't be written), and what nobody has thought of, which names the place
in this package that has raised, so that it can be mended.
"""

from __future__ import annotations

import os
import traceback

from monarch_nb.exceptions import MeshError, RankSetError
from monarch_nb.tracebacks import ShowsItself, headline


def explanation(error: BaseException, typed: str) -> str:
    """Return an error in words, without a traceback.

    Args:
        typed: what has led to it: `%mesh export x.py`, `monarch-nb start`.
    """
    if isinstance(error, MeshError | RankSetError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        files = " and ".join(repr(os.fspath(f)) for f in (error.filename, error.filename2) if isinstance(f, str | bytes))
        return f"{typed}: {error.strerror}{': ' if files else ''}{files}. {_ADVICE.get(type(error), 'Mend that, then type it again')}"
    if isinstance(error, ValueError | LookupError):
        return f"{typed}: {error}"
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({place[0].filename}, line {place[0].lineno})" if place else ""
    return f"{typed}: {type(error).__name__}: {error}{where}. That's a fault of monarch_nb; please report it"


_ADVICE: dict[type[OSError], str] = {
    FileNotFoundError: "Name a file in a directory that exists",
    NotADirectoryError: "Name a file in a directory that exists",
    IsADirectoryError: "Name a file, not a directory",
    PermissionError: "Name a file that you can write",
}


def clear_error(error: Exception, typed: str) -> Exception:
    """Return what a notebook shows without frames of this package: `error` itself where it says all, else one in its place."""
    own = getattr(type(error), "_render_traceback_", None)
    if isinstance(error, MeshError | RankSetError):
        if own is ShowsItself._render_traceback_:
            vars(error)["_render_traceback_"] = headline(error).splitlines
        return error
    found = MeshError(explanation(error, typed))
    found.__cause__ = error
    vars(found)["_render_traceback_"] = f"{type(error).__name__}: {found}".splitlines
    return found
