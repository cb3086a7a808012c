"""Flags of torchrun that have no meaning on a mesh, or have another form in a notebook."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from monarch_nb._commands.command import Argument, Place, argument

_MEET = "ranks of a run meet at a store of their own, which is always new. Leave it out"
_HOSTS = "hosts are those of the mesh. Leave it out; %mesh start --help says how to start one on several"
_OUTPUT = (
    "a run writes no log files: output of all ranks is shown here. Leave it out; %mesh logs shows it again"
)
_SHOWN = (
    "output of all ranks is shown, equal lines once. Leave it out; %mesh logs has --ranks and --grep for "
    "some of it"
)
_LIVING = "a run takes ranks that live already, and that outlive it"
REFUSED: Mapping[str, str] = {
    "rdzv-backend": _MEET,
    "rdzv-endpoint": _MEET,
    "rdzv-id": _MEET,
    "rdzv-conf": _MEET,
    "master-addr": _MEET,
    "master-port": _MEET,
    "local-addr": _MEET,
    "node-rank": _HOSTS,
    "role": "all ranks of a run are alike. Leave it out; --env NAME=VALUE tells a script what it's for",
    "start-method": f"{_LIVING}. Leave it out; %mesh start --spawn starts fresh interpreters",
    "monitor-interval": "a rank that ends is noticed at once. Leave it out",
    "shutdown-timeout": f"{_LIVING}. Leave it out; --timeout T interrupts a run that takes longer",
    "signals-to-handle": (
        f"{_LIVING}; only the interrupt is passed on to them. Leave it out; Ctrl-C or %mesh interrupt "
        "interrupts a run"
    ),
    "event-log-handler": "the mesh's journal has each run. Leave it out; %mesh history shows it",
    "no-python": (
        "a run is Python, in interpreters that live already. Run a script that calls "
        "subprocess.run([...], check=True)"
    ),
    "log-dir": _OUTPUT,
    "redirects": _OUTPUT,
    "tee": _OUTPUT,
    "logs-specs": _OUTPUT,
    "local-ranks-filter": _SHOWN,
    "duplicate-stdout-filters": _SHOWN,
    "duplicate-stderr-filters": _SHOWN,
    "numa-binding": (
        f"{_LIVING}, so they're bound when they start. Leave it out; in Monarch programs "
        "spawn_procs(proc_bind=[...]) binds them"
    ),
    "virtual-local-rank": (
        "which GPUs a rank sees is the mesh's. Leave it out; %mesh start --gpus N gives each rank one, cuda:0"
    ),
}
"""Why each flag means nothing here, and what to do instead."""
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
IN_NOTEBOOKS: Mapping[str, str] = {f"--{name}": why[0].upper() + why[1:] for name, why in REFUSED.items()} | {
    f"--{name}": why for name, why in ELSEWHERE.items()
}
"""The notebook's message about each flag of torchrun."""


class _Meaningless(argparse.Action):
    """An argparse action that refuses a flag of torchrun's that has no meaning on a mesh."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        flag = self.option_strings[0]
        parser.error(f"{flag} means nothing here: {REFUSED[flag.removeprefix('--')]}")


def meaningless() -> tuple[Argument, ...]:
    """Return torchrun's flags that have no meaning on a mesh: each is refused with the reason."""
    return tuple(map(_refused, REFUSED))


def _refused(name: str) -> Argument:
    flags = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}", *filter(None, [_LETTERS.get(name)])))
    number = {"nargs": 0} if name in _ALONE else {}
    return argument(*flags, about=argparse.SUPPRESS, only=Place.TERMINAL, action=_Meaningless, **number)
