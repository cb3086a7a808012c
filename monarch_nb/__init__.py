"""One notebook drives a cluster: a mesh of processes runs cells (`%%mesh`), actors and a debugger, and
outlives the kernel.

In a notebook:

    %load_ext monarch_nb
    %mesh start --gpus 8

In a program:

    >>> import monarch_nb
    >>> mesh = monarch_nb.start("dev", {"gpus": 8})          # doctest: +SKIP
    >>> mesh.run("print(rank)")                              # doctest: +SKIP

Importing this package imports none of torch, IPython or ZeroMQ; names below are loaded when they are first
used. CONTRIBUTING.md describes how the package is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch_nb._client import card as _card
from monarch_nb._transport import data_plane as _data_plane
from monarch_nb._transport import mesh_tensors as _mesh_tensors
from monarch_nb._version import __version__

if TYPE_CHECKING:
    from monarch_nb._parallel.checkpoint import restore as restore
    from monarch_nb._parallel.checkpoint import save as save
    from monarch_nb._parallel.module import explain as explain
    from monarch_nb._parallel.module import parallelize as parallelize
    from monarch_nb._tensor import random as random
    from monarch_nb._tensor.borrow import Borrow as Borrow
    from monarch_nb._tensor.borrow import Stream as Stream
    from monarch_nb._tensor.borrow import get_active_stream as get_active_stream
    from monarch_nb._tensor.distribute import distribute as distribute
    from monarch_nb._tensor.distribute import redistribute as redistribute
    from monarch_nb._tensor.feed import feed as feed
    from monarch_nb._tensor.gradients import grad_function as grad_function
    from monarch_nb._tensor.gradients import grad_generator as grad_generator
    from monarch_nb._tensor.groups import RemoteProcessGroup as RemoteProcessGroup
    from monarch_nb._tensor.module import module_to_mesh as module_to_mesh
    from monarch_nb._tensor.movement import as_global as as_global
    from monarch_nb._tensor.movement import fetch_shard as fetch_shard
    from monarch_nb._tensor.movement import inspect as inspect
    from monarch_nb._tensor.movement import per_rank as per_rank
    from monarch_nb._tensor.movement import replicated as replicated
    from monarch_nb._tensor.movement import show as show
    from monarch_nb._tensor.recording import coalescing as coalescing
    from monarch_nb._tensor.recording import compile as compile  # noqa: A004
    from monarch_nb._tensor.reduction import reduce as reduce
    from monarch_nb._tensor.reduction import reduce_ as reduce_
    from monarch_nb._tensor.reduction import slice_mesh as slice_mesh
    from monarch_nb._tensor.reduction import to_mesh as to_mesh
    from monarch_nb._tensor.remote import call_on_shard_and_fetch as call_on_shard_and_fetch
    from monarch_nb._tensor.remote import remote as remote
    from monarch_nb._tensor.tensor import Tensor as Tensor
    from monarch_nb.actor.active import get_active_mesh as get_active_mesh
    from monarch_nb.actor.active import no_mesh as no_mesh
    from monarch_nb.actor.heal import heal_mesh as heal_mesh
    from monarch_nb.config import clear_runtime_config as clear_runtime_config
    from monarch_nb.config import configure as configure
    from monarch_nb.config import configured as configured
    from monarch_nb.config import get_global_config as get_global_config
    from monarch_nb.config import get_runtime_config as get_runtime_config
    from monarch_nb.mesh import Mesh as Mesh
    from monarch_nb.mesh import attach as attach
    from monarch_nb.mesh import start as start
    from monarch_nb.tracking import track as track

_WHERE = {
    "Mesh": "monarch_nb.mesh",
    "attach": "monarch_nb.mesh",
    "clear_runtime_config": "monarch_nb.config",
    "configure": "monarch_nb.config",
    "configured": "monarch_nb.config",
    "get_active_mesh": "monarch_nb.actor.active",
    "get_global_config": "monarch_nb.config",
    "get_runtime_config": "monarch_nb.config",
    "heal_mesh": "monarch_nb.actor.heal",
    "start": "monarch_nb.mesh",
    "Tensor": "monarch_nb._tensor.tensor",
    "as_global": "monarch_nb._tensor.movement",
    "distribute": "monarch_nb._tensor.distribute",
    "inspect": "monarch_nb._tensor.movement",
    "module_to_mesh": "monarch_nb._tensor.module",
    "explain": "monarch_nb._parallel.module",
    "feed": "monarch_nb._tensor.feed",
    "parallelize": "monarch_nb._parallel.module",
    "per_rank": "monarch_nb._tensor.movement",
    "redistribute": "monarch_nb._tensor.distribute",
    "replicated": "monarch_nb._tensor.movement",
    "restore": "monarch_nb._parallel.checkpoint",
    "save": "monarch_nb._parallel.checkpoint",
    "show": "monarch_nb._tensor.movement",
    "Borrow": "monarch_nb._tensor.borrow",
    "RemoteProcessGroup": "monarch_nb._tensor.groups",
    "Stream": "monarch_nb._tensor.borrow",
    "call_on_shard_and_fetch": "monarch_nb._tensor.remote",
    "coalescing": "monarch_nb._tensor.recording",
    "compile": "monarch_nb._tensor.recording",
    "fetch_shard": "monarch_nb._tensor.movement",
    "get_active_stream": "monarch_nb._tensor.borrow",
    "grad_function": "monarch_nb._tensor.gradients",
    "grad_generator": "monarch_nb._tensor.gradients",
    "reduce": "monarch_nb._tensor.reduction",
    "reduce_": "monarch_nb._tensor.reduction",
    "remote": "monarch_nb._tensor.remote",
    "slice_mesh": "monarch_nb._tensor.reduction",
    "to_mesh": "monarch_nb._tensor.reduction",
    "no_mesh": "monarch_nb.actor.active",
    "random": "monarch_nb._tensor",
    "track": "monarch_nb.tracking",
}

__all__ = [
    "Borrow",
    "Mesh",
    "RemoteProcessGroup",
    "Stream",
    "Tensor",
    "__version__",
    "as_global",
    "attach",
    "call_on_shard_and_fetch",
    "clear_runtime_config",
    "coalescing",
    "configure",
    "configured",
    "distribute",
    "feed",
    "fetch_shard",
    "get_active_mesh",
    "get_active_stream",
    "get_global_config",
    "get_runtime_config",
    "grad_function",
    "grad_generator",
    "heal_mesh",
    "inspect",
    "module_to_mesh",
    "no_mesh",
    "per_rank",
    "random",
    "redistribute",
    "reduce",
    "reduce_",
    "remote",
    "replicated",
    "show",
    "slice_mesh",
    "start",
    "to_mesh",
    "track",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        import importlib

        found = importlib.import_module(_WHERE[name])
        return importlib.import_module(f"{_WHERE[name]}.{name}") if name == "random" else getattr(found, name)
    raise AttributeError(f"module 'monarch_nb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])


def _remote_arguments() -> Any:
    from monarch_nb.rdma import remote_arguments  # loaded when such a value is first sent or fetched

    return remote_arguments


def _show_card() -> Any:
    from monarch_nb._widgets.card import show_card  # loaded when a mesh is first displayed

    return show_card


def _tensors() -> Any:
    from monarch_nb._tensor import active  # loaded when a mesh is first used for tensors

    return active


_data_plane.provide(_remote_arguments)
_mesh_tensors.provide(_tensors)
_card.provide(_show_card)


def load_ipython_extension(shell: Any) -> None:
    """Register the extension's magics in IPython; called by `%load_ext monarch_nb`."""
    from monarch_nb._magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the extension's magics from IPython; called by `%unload_ext monarch_nb`."""
    from monarch_nb._magics import unload

    unload(shell)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Say where Jupyter finds the server extension."""
    from monarch_nb._server import extension_class

    return [{"module": "monarch_nb._server", "app": extension_class()}]
