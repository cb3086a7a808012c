"""Messages in a terminal's words. The library, the home and the ranks name what to type as a notebook would, `%mesh heal`; they don't know who reads it.

Who reads it in a terminal is told `monarch-nb heal NAME`, or, of what only a notebook can do, that it is for a notebook.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_MAGIC = re.compile(r"%mesh ([a-z][a-z-]*)((?: --env\b)?)( [A-Za-z_][\w-]*(?=$|[\s,;.:)]))?")
_NAMED = ("start", "attach", "detach", "use", "stop", "status", "top")
"""Verbs whose first word is a mesh's name."""


def in_terminal(text: str, commands: Collection[str], mesh_name: str | None = None) -> str:
    """Return a message with its magics replaced by commands.

    Args:
        commands: those that `monarch-nb` has.
        mesh_name: of the mesh that the message is about, if it's known.

    >>> in_terminal("rank 1 is lost; %mesh heal puts it back", ["heal"], "dev")
    'rank 1 is lost; monarch-nb heal dev puts it back'
    >>> in_terminal("Come back: %mesh attach dev", ["heal"])
    'Come back: %mesh attach dev (in a notebook)'
    """

    def replaced(match: re.Match[str]) -> str:
        verb, env, word = match[1], match[2], match[3] or ""
        if verb == "diff" and env:
            verb, env = "diff-env", ""
        if verb not in commands:
            return f"%mesh {verb}{env}{word if verb in _NAMED else ''} (in a notebook){'' if verb in _NAMED else word}"
        name = f" {mesh_name}" if mesh_name and verb != "list" and not (verb in _NAMED and word) else ""
        return f"monarch-nb {verb}{name}{word}"

    return _MAGIC.sub(replaced, text)
