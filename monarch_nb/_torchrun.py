"""Flags of torchrun that mean nothing on processes which live already: why, and what is typed instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_OUT = "Leave it out"


@dataclass(frozen=True)
class Refusal:
    """The reason why a flag means nothing here, and what to do instead.

    Attributes:
        why: the reason.
        typed: what to type instead in a notebook or a terminal.
        called: what to do instead in a program that calls `serve`.
    """

    why: str
    typed: str = _OUT
    called: str = _OUT


_MEET = Refusal("ranks of a run meet at a store of their own, which is always new")
_OUTPUT = Refusal(
    "a run writes no log files: output of all ranks is shown here", f"{_OUT}; %mesh logs shows it again"
)
_SHOWN = Refusal(
    "output of all ranks is shown, equal lines once",
    f"{_OUT}; %mesh logs has --ranks and --grep for some of it",
)
_LIVING = "a run takes ranks that live already, and that outlive it"
REFUSED: Mapping[str, Refusal] = {
    "rdzv-backend": _MEET,
    "rdzv-endpoint": _MEET,
    "rdzv-id": _MEET,
    "rdzv-conf": _MEET,
    "master-addr": _MEET,
    "master-port": _MEET,
    "local-addr": _MEET,
    "node-rank": Refusal(
        "hosts are those of the mesh",
        f"{_OUT}; %mesh start --help says how to start one on several",
        f"{_OUT}; --nnodes says how many hosts, scheduler= where they come from",
    ),
    "role": Refusal(
        "all ranks of a run are alike",
        f"{_OUT}; --env NAME=VALUE tells a script what it's for",
        f'{_OUT}; env={{"NAME": "VALUE"}} tells a script what it\'s for',
    ),
    "start-method": Refusal(_LIVING, f"{_OUT}; %mesh start --spawn starts fresh interpreters"),
    "monitor-interval": Refusal("a rank that ends is noticed at once"),
    "shutdown-timeout": Refusal(
        _LIVING, f"{_OUT}; --timeout T interrupts a run that takes longer", f"{_OUT}; job.kill() ends them"
    ),
    "signals-to-handle": Refusal(
        f"{_LIVING}; only the interrupt is passed on to them",
        f"{_OUT}; Ctrl-C or %mesh interrupt interrupts a run",
    ),
    "event-log-handler": Refusal("the mesh's journal has each run", f"{_OUT}; %mesh history shows it"),
    "no-python": Refusal(
        "a run is Python, in interpreters that live already",
        "Run a script that calls subprocess.run([...], check=True)",
        "Name a script that calls subprocess.run([...], check=True)",
    ),
    "log-dir": _OUTPUT,
    "redirects": _OUTPUT,
    "tee": _OUTPUT,
    "logs-specs": _OUTPUT,
    "local-ranks-filter": _SHOWN,
    "duplicate-stdout-filters": _SHOWN,
    "duplicate-stderr-filters": _SHOWN,
    "numa-binding": Refusal(
        f"{_LIVING}, so they're bound when they start",
        f"{_OUT}; in Monarch programs spawn_procs(proc_bind=[...]) binds them",
        f"{_OUT}; job.state().hosts.spawn_procs(..., proc_bind=[...]) binds them, and SPMDActor runs the "
        "script",
    ),
    "virtual-local-rank": Refusal(
        "which GPUs a rank sees is the mesh's",
        f"{_OUT}; %mesh start --gpus N gives each rank one, cuda:0",
        f"{_OUT}; each rank sees all GPUs of its host, and its own is cuda:$LOCAL_RANK",
    ),
}
"""Why each flag means nothing here, and what to do instead."""
