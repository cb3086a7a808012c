"""Engines: the systems that provide hosts."""

from __future__ import annotations

from monarch_nb._units import duration
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job.engines.base import Capabilities, Engine, EngineError, Look, NoAnswer, State, Usable
from monarch_nb.job.engines.command import Command
from monarch_nb.job.engines.compose import Compose
from monarch_nb.job.engines.kubernetes import Kubernetes
from monarch_nb.job.engines.lightning import Lightning
from monarch_nb.job.engines.own_allocation import OwnAllocation
from monarch_nb.job.engines.ray import Ray
from monarch_nb.job.engines.skypilot import SkyPilot
from monarch_nb.job.engines.slurm import Slurm
from monarch_nb.job.engines.ssh import SSH
from monarch_nb.job.engines.torchrun import Torchrun
from monarch_nb.job.spec import ASKED_OF_ENGINES, KEYS, HostSpec, nearest

__all__ = [
    "ENGINES",
    "Capabilities",
    "Engine",
    "EngineError",
    "Look",
    "NoAnswer",
    "State",
    "Usable",
    "engine_of",
    "ignored",
]

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine
    for engine in (
        SSH,
        Slurm,
        OwnAllocation,
        Ray,
        Kubernetes,
        Torchrun,
        Compose,
        Command,
        Lightning,
        SkyPilot,
    )
}


def ignored(spec: HostSpec) -> str:
    """Return what is said of a key that a spec's engine could do nothing about; empty if there's none."""
    engine = engine_of(spec)
    if spec.machines and not engine.names_hosts(spec):
        names = ",".join(spec.machines[:4])
        return f"engine {spec.engine} chooses hosts by itself, not {names}: give a number, as in --hosts 2"
    heeded = engine.keys(spec)
    left = [key for key in ASKED_OF_ENGINES if getattr(spec, KEYS[key][0]) and key not in heeded]
    if not left:
        return ""
    hint = "leave it away"
    if spec.engine == Command.name and left[0] in ("gpus", "time", "partition", "account"):
        field = "queue" if left[0] == "partition" else left[0]
        hint = f"write {{{field}}} into header = of [.command] for the batch system, or {hint}"
    return f"engine {spec.engine} would ignore {left[0]} = {_written(spec, left[0])}: {hint}"


def _written(spec: HostSpec, key: str) -> str:
    value = getattr(spec, KEYS[key][0])
    if key == "time":
        return duration(value).replace(" ", "")
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def engine_of(spec: HostSpec) -> Engine:
    """Return the engine that a spec names.

    Raises:
        MeshUsageError: if the engine doesn't exist, or its table in the profile has an unknown setting.
    """
    if spec.engine not in ENGINES:
        raise MeshUsageError(
            f"unknown engine {spec.engine!r}.{nearest(spec.engine, ENGINES)} Known: {', '.join(ENGINES)}"
        )
    engine = ENGINES[spec.engine]()
    for key, _ in spec.own if engine.own_keys else ():
        if key not in engine.own_keys:
            raise MeshUsageError(
                f"[{spec.engine}] unknown key {key!r}.{nearest(key, engine.own_keys)} Known: "
                f"{', '.join(engine.own_keys)}"
            )
    return engine
