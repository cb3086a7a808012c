"""What `monarch-nb run` takes: torchrun's flags, where they mean something. What it does: `running`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from monarch_nb.magics.arguments import add_script_arguments, mesh_name, positive, seconds, shortened

WHY_NOT = "ranks of a run meet at a store of their own, which is always new. Leave it out"
_MEANINGLESS = (
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
"""Flags of torchrun that say where its agents meet, and what becomes of their files."""


class _Meaningless(argparse.Action):
    """A flag of torchrun that has nothing to say here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error(f"{self.option_strings[0]} means nothing here: {WHY_NOT}")


def num_procs(text: str) -> str:
    """Read a number of processes: 4, auto, gpu, cpu."""
    if text not in ("auto", "gpu", "cpu"):
        try:
            positive(text)
        except argparse.ArgumentTypeError:
            expected = "expected a number of processes, auto, gpu or cpu"
            raise argparse.ArgumentTypeError(f"{expected}; not {shortened(text)}") from None
    return text


def num_restarts(text: str) -> int:
    """Read how often something may be done again: 0, 1, 2 ..."""
    return 0 if text == "0" else positive(text)


def add_arguments(add: Callable[..., Any]) -> None:
    """Add what `monarch-nb run` takes."""
    add("--name", "-n", dest="mesh", type=mesh_name, help="a mesh that runs; without it, one for this run")
    add("--ranks", default="all", help="a rank set, of a mesh that runs: all; 0-3,7; ::2; hosts=0")
    add(
        "--nproc-per-node", "--nproc_per_node", type=num_procs, metavar="N",
        help="how many ranks: 4, auto, gpu or cpu (without it: 1)",
    )  # fmt: skip
    add("--nnodes", type=positive, default=1, metavar="N", help="1: this machine")
    add("--standalone", action="store_true", help="as for torchrun; it's always so")
    add(
        "--max-restarts", "--max_restarts", type=num_restarts, default=0, metavar="N",
        help="how often it's run again if it fails",
    )  # fmt: skip
    add("--timeout", type=seconds, metavar="T", help="90 or 90s; then the ranks are interrupted")
    for name in _MEANINGLESS:
        add(f"--{name}", f"--{name.replace('-', '_')}", action=_Meaningless, help=argparse.SUPPRESS)
    add_script_arguments(add)
