"""Launchers of frameworks on a rank: the rank acts as one of the processes that the launcher would start.

- accelerate's `notebook_launcher` and `debug_launcher` refuse, and say what to type.
- accelerate, and so transformers and TRL, takes all ranks where there are only CPUs, too. By itself it would
  do so only if told `cpu=True`, and take each rank for the only one else, in silence.
- Lightning's `Fabric()` and `Trainer()` without devices take the ranks that there are, instead of one process
  of their own. A script has what it has under torchrun.
"""

from __future__ import annotations

import functools
import inspect
import os
import reprlib
import sys
from collections.abc import Callable, Mapping
from types import FrameType
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
    scope = _scope_of(sys._getframe(1))
    given = tuple(args) if isinstance(args, tuple | list) else (args,)
    raise MeshUsageError(
        f"{launcher} starts processes, and this code runs in one of the mesh's already, with its rank and "
        f"world size set: in a cell of the mesh, {_advice(function, given, scope)}"
    )


def _scope_of(frame: FrameType) -> dict[str, object]:
    return {**frame.f_globals, **frame.f_locals}


def _advice(function: Any, args: tuple[object, ...], scope: Mapping[str, object]) -> str:
    """Say what to type so that the function runs; what has no name there is written by the reader."""
    named: dict[str, object] = {}
    while isinstance(function, functools.partial) and _name(function, scope) is None:
        function, args, named = function.func, (*function.args, *args), {**function.keywords, **named}
    words = [_written(each, scope) for each in args]
    words += [f"{name}={_written(each, scope)}" for name, each in named.items()]
    given = ", ".join(words)
    if (name := _called(function, scope)) is not None:
        return f"type {name}({given})"
    kind = "lambda" if getattr(function, "__name__", "") == "<lambda>" else "function"
    return f"type (...)({given}) with your {kind} in place of the dots"


def _called(function: Any, scope: Mapping[str, object]) -> str | None:
    """Return what a function is called in a scope, or None if nothing there is it."""
    if (name := _name(function, scope)) is not None:
        return name
    if (owner := getattr(function, "__self__", None)) is not None and not inspect.ismodule(owner):
        owner_name = _name(owner, scope)
        return owner_name and f"{owner_name}.{function.__name__}"
    if function is None:
        return "train"
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else None


def _name(value: object, scope: Mapping[str, object]) -> str | None:
    # A name of the notebook's, not one of the shell's such as _, _3 or __.
    return next((name for name, each in scope.items() if each is value and name[0] != "_"), None)


def _written(value: object, scope: Mapping[str, object]) -> str:
    is_plain = isinstance(value, int | float | str | bytes | None)
    return (None if is_plain else _name(value, scope)) or reprlib.repr(value)


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


_FOR_MANY = ("ddp", "fsdp", "deepspeed", "modelparallel")
"""How names of strategies begin that train on several processes."""


def _all_ranks(given: dict[str, Any]) -> dict[str, int]:
    """Return the arguments by which Lightning takes all ranks, where nothing was said about devices."""
    is_silent = given.get("devices", "auto") == "auto" and given.get("num_nodes", 1) == 1
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    is_script = "TORCHELASTIC_RUN_ID" in os.environ
    if not is_silent or is_script or not _takes_all(given) or ranks_here < 1:
        return {}
    num_hosts, num_gpus = int(os.environ.get("GROUP_WORLD_SIZE", "1")), _num_gpus()
    if ranks_here > 1 and num_gpus == 1:
        return _as_nodes(ranks_here * num_hosts)
    if 0 < num_gpus < ranks_here:
        return {}
    return {"devices": ranks_here, "num_nodes": num_hosts}


def _takes_all(given: dict[str, Any]) -> bool:
    """Return whether the strategy is one for several processes that are there already. One that starts them
    itself, as `ddp_spawn`, is Lightning's to refuse.
    """
    strategy = given.get("strategy", "auto")
    name = strategy if isinstance(strategy, str) else type(strategy).__name__.lower()
    starts_them = any(word in name for word in ("spawn", "fork", "notebook"))
    return name == "auto" or (name.startswith(_FOR_MANY) and not starts_them)


def _num_gpus() -> int:
    """Return how many GPUs this rank sees."""
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _as_nodes(num_ranks: int) -> dict[str, int]:
    """Have Lightning take each rank for a node with one device: it sees its own GPU only, as number 0.

    Lightning numbers processes by NODE_RANK and LOCAL_RANK; a Trainer that has ended leaves no WORLD_SIZE.
    """
    os.environ.update(LOCAL_RANK="0", NODE_RANK=os.environ["RANK"])
    return {"devices": 1, "num_nodes": num_ranks}
