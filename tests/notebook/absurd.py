"""Absurd arguments for every verb and command, made from their own parsers: a new verb is included by itself.

Each argument gets some of the absurd values, others each time; all of them with MONARCH_NB_HOSTILE=full
(`make soak`).
"""

from __future__ import annotations

import argparse
import os
import shlex
import zlib
from collections.abc import Iterator, Sequence

FULL = os.environ.get("MONARCH_NB_HOSTILE") == "full"
VALUES = ("", "-1", "🐙", "a-" * 50, "9" * 20, "1e999", "../x", "[(", "--nope")
SAMPLES = {
    "dims": "procs=2",
    "cell_number": "1",
    "positive": "1",
    "whole": "0",
    "seconds": "1h",
    "num_bytes": "1M",
    "variable": "K=V",
}
"""What each type of argument takes, where the absurd one is another."""
PLACES = ("--export",)
"""Arguments for which any value is the name of a place, where a whole environment would be written: they get
places that can't be.
"""


def lines(
    parser: argparse.ArgumentParser, mesh: str, values: Sequence[str] = VALUES, num: int = 2
) -> Iterator[list[str]]:
    """Yield lines of arguments: each argument that takes a value gets `num` absurd ones in turn, the
    others what they need.
    """
    actions = [a for a in parser._actions if a.nargs != 0]
    at = zlib.crc32(parser.prog.encode())
    for number, absurd in enumerate(actions):
        for value in values if FULL else [values[(at + number * num + i) % len(values)] for i in range(num)]:
            words = []
            for action in actions:
                if action is absurd:
                    flag = _flag(action)
                    words += [*flag, f"/dev/null/{value}" if flag and flag[0] in PLACES else value]
                elif _is_needed(action):
                    words += [*_flag(action), _sample(action, mesh)]
            yield words


def _is_needed(action: argparse.Action) -> bool:
    """Say whether an argument has to be there: or the line would be refused, start something, or go on for
    good.
    """
    return (
        action.required
        or (action.dest == "name" and not action.option_strings)
        or "--count" in action.option_strings
    )


def _flag(action: argparse.Action) -> list[str]:
    return [max(action.option_strings, key=len)] if action.option_strings else []


def _sample(action: argparse.Action, mesh: str) -> str:
    if action.dest == "name":
        return mesh
    if action.choices:
        return str(next(iter(action.choices)))
    return SAMPLES.get(getattr(action.type, "__name__", ""), "x")


def typed(words: list[str]) -> str:
    """Return words as one types them."""
    return shlex.join(words)
