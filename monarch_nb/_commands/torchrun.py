"""Flags of torchrun that have no meaning on a mesh, or have another form in a notebook."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from monarch_nb._commands.command import Argument, Place, argument
from monarch_nb._torchrun import REFUSED, Refusal

_LETTERS = {"redirects": "-r", "tee": "-t"}
_ALONE = frozenset({"no-python", "virtual-local-rank"})
"""Flags that take no value."""
ELSEWHERE: Mapping[str, str] = {
    "nproc-per-node": "A script runs on all ranks of the mesh; --ranks 0-1 chooses some",
    "nnodes": "The mesh has its hosts already: %mesh start --help says how to start one on several",
    "standalone": "Leave it out: it's always so",
    "run-path": "Leave it out: it's always so",
    "max-restarts": "Type %mesh on-failure heal --max-restarts N once, before it",
}
"""Flags that a terminal's run accepts and a notebook's doesn't, with what to type there."""


def _typed(refusal: Refusal) -> str:
    return f"{refusal.why}. {refusal.typed}"


def _sentence(refusal: Refusal) -> str:
    text = _typed(refusal)
    return text[0].upper() + text[1:]


IN_NOTEBOOKS: Mapping[str, str] = {f"--{name}": _sentence(each) for name, each in REFUSED.items()} | {
    f"--{name}": why for name, why in ELSEWHERE.items()
}
"""The notebook's message about each flag of torchrun."""


class _Meaningless(argparse.Action):
    """An argparse action that refuses a flag of torchrun's that has no meaning on a mesh."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        flag = self.option_strings[0]
        parser.error(f"{flag} means nothing here: {_typed(REFUSED[flag.removeprefix('--')])}")


def meaningless() -> tuple[Argument, ...]:
    """Return torchrun's flags that have no meaning on a mesh: each is refused with the reason."""
    return tuple(map(_refused, REFUSED))


def _refused(name: str) -> Argument:
    flags = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}", *filter(None, [_LETTERS.get(name)])))
    number = {"nargs": 0} if name in _ALONE else {}
    return argument(*flags, about=argparse.SUPPRESS, only=Place.TERMINAL, action=_Meaningless, **number)
