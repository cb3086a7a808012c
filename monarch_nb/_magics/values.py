"""Completions of the value after a verb or a flag: choices of the parser, names of the mesh, and common
values where any is allowed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from monarch_nb._commands.settings import SETTINGS
from monarch_nb._commands.table import IN_NOTEBOOKS
from monarch_nb._commands.values import DEFAULT_NAME
from monarch_nb._protocol.states import EntryKind

if TYPE_CHECKING:
    from monarch_nb._magics.state import State
    from monarch_nb.mesh import Mesh

_USUAL: dict[str, tuple[str, ...]] = {
    "gpus": ("1", "2", "4", "8"),
    "procs": ("1", "2", "4", "8"),
    "hosts": ("1", "2", "4", "8"),
    "spares": ("1", "2"),
    "idle_timeout": ("30m", "2h", "8h", "24h"),
    "time": ("30m", "2h", "8h", "24h"),
    "group_timeout": ("1m", "10m", "30m"),
    "timeout": ("30s", "5m", "1h"),
    "every": ("1s", "5s", "30s"),
    "count": ("1", "10", "100"),
    "last": ("10", "50", "200"),
    "max_restarts": ("1", "3", "5", "10"),
    "size": ("16M", "64M", "256M", "1G"),
    "bytes": ("1M", "16M", "256M"),
    "dim": ("0", "1", "-1"),
}
_TIMES = ("30s", "5m", "30m")
_OF_PATHS = ("file", "place", "condition")
"""Arguments that are a path or an expression, for which IPython's own completions are right."""
_LAST_CELLS = 20


class Word:
    """The word at the cursor, with the argument that it belongs to and the part that has been typed.

    Args:
        words: all words after the verb; the last one is at the cursor.
    """

    def __init__(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
        self.text = words[-1]
        self.earlier: dict[str, str] = {}
        """Words typed before it, by argument."""
        options = parser._option_string_actions
        positionals = [action for action in parser._actions if not action.option_strings]
        waiting: argparse.Action | None = None
        for word in words[:-1]:
            if word.startswith("-") and word.partition("=")[0] in options:
                waiting = _takes_value(options[word]) if word in options else None
            elif waiting is not None:
                self.earlier[waiting.dest], waiting = word, None
            elif word and positionals:
                self.earlier[positionals[0].dest] = word
                if positionals[0].nargs not in ("+", "*"):
                    positionals.pop(0)
        flag, equals, value = self.text.partition("=")
        if equals and flag in options:
            self.text, waiting = value, options[flag]
        self.is_flag = self.text.startswith("-") and not equals
        self.action = waiting or (positionals[0] if positionals else None)


def _takes_value(action: argparse.Action) -> argparse.Action | None:
    return None if action.nargs == 0 else action


class Values:
    """The source of completions for typed values. A completion is a fragment, the end of the typed text that
    it replaces, and the replacements.
    """

    def __init__(self, state: State, remote: Callable[[], list[str]]) -> None:
        self._state = state
        self._remote = remote

    def offer(self, verb: str, word: Word, mesh: Mesh | None) -> tuple[str, list[str]] | None:
        """Return the fragment and its completions; None where IPython's are better."""
        action = word.action
        if action is None:
            return word.text, []
        if action.dest in _OF_PATHS:
            return None
        if action.dest in ("dims", "sizes"):
            return _sizes(word.text, mesh if action.dest == "sizes" else None)
        start = word.text.rpartition(",")[2]
        return start, [each for each in self._all(verb, action, word, mesh) if each.startswith(start)]

    def _all(self, verb: str, action: argparse.Action, word: Word, mesh: Mesh | None) -> Sequence[str]:
        if action.choices:
            return [str(choice) for choice in action.choices if str(choice)]
        if action.dest == "name":
            return self._names(verb)
        if action.dest in ("names", "variable", "cls"):
            return self._variables(verb)
        if action.dest == "verb":
            return list(IN_NOTEBOOKS)
        if action.dest == "value":
            return _settings(word.earlier.get("setting", ""))
        if action.dest == "env" and verb == "start":
            return [f"{name}=" for name in sorted(os.environ)]
        if action.dest == "number":
            return _cells(mesh)
        return _USUAL.get(action.dest, ())

    def _names(self, verb: str) -> list[str]:
        from monarch_nb._client.launch import list_connections

        names = [connection.name for connection in list_connections()]
        return list(dict.fromkeys([DEFAULT_NAME, *names])) if verb == "start" else names

    def _variables(self, verb: str) -> list[str]:
        if verb not in ("push", "scatter", "reload"):
            return self._remote()
        shell = self._state.shell
        own = {
            name: value
            for name, value in shell.user_ns.items()
            if not name.startswith("_") and name not in shell.user_ns_hidden
        }
        return [name for name, value in own.items() if verb != "reload" or isinstance(value, type)]


def _settings(setting: str) -> list[str]:
    takes = SETTINGS[setting].takes.split("|") if setting in SETTINGS else []
    return [value for each in takes for value in (_TIMES if each == "TIME" else (each,))]


def _cells(mesh: Mesh | None) -> list[str]:
    if mesh is None:
        return []
    return [str(entry.n) for entry in mesh.history(_LAST_CELLS) if entry.kind == EntryKind.CELL][::-1]


def _sizes(text: str, mesh: Mesh | None) -> tuple[str, list[str]]:
    """Return completions of `hosts=2,gpus=`: dimensions not named yet, sizes around the present one.

    >>> _sizes("hosts=2,g", None)
    ('g', ['gpus='])
    """
    *named, last = text.split(",")
    sizes = dict(mesh.sizes) if mesh is not None else {"hosts": 0, "gpus": 0}
    dimension, equals, start = last.partition("=")
    if not equals:
        taken = {part.partition("=")[0] for part in named}
        return last, [f"{name}=" for name in sizes if name.startswith(last) and name not in taken]
    present = sizes.get(dimension, 0)
    numbers = {present // 2, present - 1, present + 1, 2 * present} - {present} if present else {1, 2, 4, 8}
    return start, [str(n) for n in sorted(numbers) if n > 0 and str(n).startswith(start)]
