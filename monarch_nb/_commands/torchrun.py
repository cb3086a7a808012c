"""Flags of torchrun that have nothing to say here, or in a notebook are said otherwise."""

from __future__ import annotations

import argparse
from typing import Any

from monarch_nb._commands.command import Argument, Place, argument

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
_RANKS = "A script runs on all ranks of the mesh; --ranks 0-1 chooses some"
_HOSTS = "The mesh has its hosts already: %mesh start --help says how to start one on several"
IN_NOTEBOOKS = dict.fromkeys((f"--{name}" for name in _NAMES), WHY_NOT[0].upper() + WHY_NOT[1:]) | {
    "--nproc-per-node": _RANKS,
    "--nnodes": _HOSTS,
    "--standalone": "Leave it out: it's always so",
    "--max-restarts": "Type %mesh on-failure heal --max-restarts N once, before it",
}
"""What a notebook says of each flag of torchrun."""


class _Meaningless(argparse.Action):
    """Refuses a flag of torchrun's that means nothing on a mesh."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error(f"{self.option_strings[0]} means nothing here: {WHY_NOT}")


def meaningless() -> tuple[Argument, ...]:
    """Return torchrun's flags that mean nothing on a mesh: each is refused with the reason."""
    return tuple(
        argument(
            f"--{name}", f"--{name.replace('-', '_')}",
            about=argparse.SUPPRESS, only=Place.TERMINAL, action=_Meaningless,
        )
        for name in _NAMES
    )  # fmt: skip
