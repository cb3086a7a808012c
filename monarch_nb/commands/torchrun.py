"""Flags of torchrun that have nothing to say here."""

from __future__ import annotations

import argparse
from typing import Any

from monarch_nb.commands.command import Argument, Place, argument

WHY_NOT = "ranks of a run meet at a store of their own, which is always new. Leave it out"
_NAMES = (
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "master-addr",
    "master-port",
    "node-rank",
    "start-method",
    "log-dir",
    "role",
)
"""They say where torchrun's agents meet, and what becomes of their files."""


class _Meaningless(argparse.Action):
    """Refuses such a flag."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error(f"{self.option_strings[0]} means nothing here: {WHY_NOT}")


def meaningless() -> tuple[Argument, ...]:
    """Return them: each is refused, and says why."""
    return tuple(
        argument(
            f"--{name}", f"--{name.replace('-', '_')}",
            about=argparse.SUPPRESS, only=Place.TERMINAL, action=_Meaningless,
        )
        for name in _NAMES
    )  # fmt: skip
