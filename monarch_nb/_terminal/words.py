"""Translates messages into the terminal's wording. The library, the controller and the ranks name commands as
in a notebook, `%mesh heal`, because they don't know where the message is read.

Who reads it in a terminal is told `monarch-nb heal NAME`, or, of what only a notebook can do, that it is for
a notebook.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from monarch_nb._commands.table import IN_NOTEBOOKS

_END = r"(?=$|[\s,;.:)`])"
_MAGIC = re.compile(rf"%mesh ([a-z][a-z-]*)((?: --env\b)?)( [A-Za-z_][\w-]*{_END})?( [\w|-]+{_END})?")
_NAMED = [name for name, each in IN_NOTEBOOKS.items() if each.names_mesh_first]
"""Verbs whose first word is a mesh's name."""
_OF_ALL = [name for name, each in IN_NOTEBOOKS.items() if not each.is_about_a_mesh]
"""Verbs that concern no single mesh."""
_NUM_WORDS = {"set": 2, "auto": 1, "on-failure": 1, "pull": 1, "push": 1, **dict.fromkeys(_NAMED, 1)}
"""Number of words that belong to a verb that only notebooks have; the message's text follows."""

_GOES_ON = re.compile(r":\S")
"""What follows `%mesh attach mnb` and `%mesh attach me@login`, where these are parts of a word."""
_LONG_NAME = 80
"""Number of characters. Mesh names are shorter, invitations are longer."""


def in_terminal(text: str, commands: Collection[str], mesh_name: str | None = None) -> str:
    """Return a message with its magics replaced by commands.

    Args:
        commands: those that `monarch-nb` has.
        mesh_name: of the mesh that the message is about, if it's known.

    >>> in_terminal("rank 1 is lost; %mesh heal puts it back", ["heal"], "dev")
    'rank 1 is lost; monarch-nb heal dev puts it back'
    >>> in_terminal("Come back: %mesh attach dev", ["heal"])
    'Come back: %mesh attach dev (in a notebook)'
    >>> in_terminal("the journal is off (%mesh set journal on)", ["heal"])
    'the journal is off (%mesh set journal on (in a notebook))'
    >>> in_terminal("%mesh attach mnb:eyJ2==", ["attach"]), in_terminal("%mesh attach login:dev", ["attach"])
    ('monarch-nb attach mnb:eyJ2==', 'monarch-nb attach login:dev')
    """

    def replaced(match: re.Match[str]) -> str:
        verb, env, word, more = match[1], match[2], match[3] or "", match[4] or ""
        if verb == "diff" and env:
            verb, env = "diff-env", ""
        leads_in = _is_invitation(word.strip()) or _GOES_ON.match(text, match.end()) is not None
        if verb not in commands or (verb == "attach" and not leads_in):
            num = _NUM_WORDS.get(verb, 0)
            return (
                f"%mesh {verb}{env}{''.join((word, more)[:num])} (in a notebook){''.join((word, more)[num:])}"
            )
        name = f" {mesh_name}" if mesh_name and verb not in _OF_ALL and not (verb in _NAMED and word) else ""
        return f"monarch-nb {verb}{name}{word}{more}"

    return _MAGIC.sub(replaced, text)


def _is_invitation(word: str) -> bool:
    """Return whether a word to attach to is an invitation, and not a mesh's name."""
    return word == "FILE" or "/" in word or len(word) > _LONG_NAME
