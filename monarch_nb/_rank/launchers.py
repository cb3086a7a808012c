"""Launchers of frameworks on a rank: the rank acts as one of the processes that the launcher would start.

- accelerate's `notebook_launcher` and `debug_launcher` refuse, and say what to type.
- accelerate, and so transformers and TRL, takes all ranks where there are only CPUs, too. By itself it would
  do so only if told `cpu=True`, and take each rank for the only one else, in silence.
- Lightning's `Fabric()` and `Trainer()` without devices take the ranks that there are, instead of one process
  of their own. A script has what it has under torchrun.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from monarch_nb._rank.imports import patch_imports
from monarch_nb.exceptions import MeshUsageError

_CONNECTORS = {
    "fabric.connector": "_Connector",
    "pytorch.trainer.connectors.accelerator_connector": "_AcceleratorConnector",
}
"""Modules of Lightning, each with the class that chooses devices and a strategy."""
_PACKAGES = {"fabric": "lightning_fabric", "pytorch": "pytorch_lightning"}
"""Names of Lightning's parts where they are installed separately."""


def install() -> None:
    """Patch launchers once they are imported, so that they recognise the rank's environment."""
    patch_imports(
        {"accelerate.launchers": _refuse_launchers, "accelerate.state": _patch_state, **_connectors()}
    )


def _connectors() -> dict[str, Callable[[Any], None]]:
    found: dict[str, Callable[[Any], None]] = {}
    for name, cls in _CONNECTORS.items():
        part, rest = name.split(".", 1)
        patch = functools.partial(_patch_connector, name=cls)
        found[f"lightning.{name}"] = found[f"{_PACKAGES[part]}.{rest}"] = patch
    return found


def _refuse_launchers(module: Any) -> None:
    for name in ("notebook_launcher", "debug_launcher"):
        setattr(module, name, functools.partial(_refuse, name))


def _refuse(launcher: str, function: Any = None, args: Any = (), *rest: object, **kwargs: object) -> None:
    name = getattr(function, "__name__", "train")
    given = ", ".join(map(repr, args)) if isinstance(args, tuple | list) else repr(args)
    raise MeshUsageError(
        f"{launcher} starts processes, and this code runs in one of the mesh's already, with its rank and "
        f"world size set: in a cell of the mesh, type {name}({given})"
    )


def _patch_state(module: Any) -> None:
    cls = getattr(module, "PartialState", None)
    if cls is None:  # another version of accelerate
        return
    original = cls.__init__

    @functools.wraps(original)
    def choose(self: Any, cpu: bool = False, **kwargs: Any) -> None:
        original(self, cpu or _has_only_cpus(), **kwargs)

    cls.__init__ = choose


def _has_only_cpus() -> bool:
    """Return whether this is one of several ranks, and there's no device but CPUs."""
    import torch

    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and _accelerator(torch) is None


def _accelerator(torch: Any) -> object:
    if (module := getattr(torch, "accelerator", None)) is not None:
        return module.current_accelerator() if module.is_available() else None
    return "cuda" if torch.cuda.is_available() else None  # before torch 2.6


def _patch_connector(module: Any, *, name: str) -> None:
    cls = getattr(module, name, None)
    if cls is None:  # another version of Lightning
        return
    original = cls.__init__

    @functools.wraps(original)
    def choose(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, **_all_ranks(kwargs)} if not args else kwargs)

    cls.__init__ = choose


def _all_ranks(given: dict[str, Any]) -> dict[str, int]:
    """Return the arguments by which Lightning takes all ranks, where nothing was said about devices."""
    is_silent = given.get("devices", "auto") == "auto" and given.get("num_nodes", 1) == 1
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    is_script = "TORCHELASTIC_RUN_ID" in os.environ
    if not is_silent or is_script or given.get("strategy", "auto") != "auto" or not _has_devices(ranks_here):
        return {}
    return {"devices": ranks_here, "num_nodes": int(os.environ.get("GROUP_WORLD_SIZE", "1"))}


def _has_devices(num: int) -> bool:
    """Return whether there's a device for each of `num` ranks; each sees a CPU, but maybe only its own
    GPU.
    """
    import torch

    return num > 0 and (not torch.cuda.is_available() or torch.cuda.device_count() >= num)
