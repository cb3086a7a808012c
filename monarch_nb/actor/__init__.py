"""The programming model: hosts, processes and actors as meshes; endpoints and the ways to call them.

Names and behaviour are PyTorch Monarch's: a program written for `monarch.actor` runs with `monarch_nb.actor`.

    >>> from monarch_nb.actor import Actor, endpoint, this_host
    >>> class Counter(Actor):
    ...     value = 0
    ...     @endpoint
    ...     def add(self, n: int) -> int:
    ...         self.value += n
    ...         return self.value
    >>> procs = this_host().spawn_procs({"gpus": 4})         # doctest: +SKIP
    >>> counters = procs.spawn("counters", Counter)          # doctest: +SKIP
    >>> counters.add.call(3).get()                           # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from monarch_nb._client.heal_report import HealReport
from monarch_nb._runtime import supervision as _supervision
from monarch_nb._runtime.supervision import MeshFailure, unhandled_fault_hook
from monarch_nb._shape import Extent, Point, Shape
from monarch_nb._transport.port import Port
from monarch_nb.actor import (
    config as config,  # for programs that set `actor.config.prefix_python_logs_with_actor`
)
from monarch_nb.actor import relay as _relay  # noqa: F401 - handles that need it find it registered
from monarch_nb.actor.accumulator import Accumulator
from monarch_nb.actor.actor_mesh import Actor, ActorMesh, as_endpoint, send
from monarch_nb.actor.bootstrap_command import BootstrapCommand, default_bootstrap_cmd
from monarch_nb.actor.channel import Channel, PortReceiver, RankedPortReceiver
from monarch_nb.actor.checkpoint import Checkpointed
from monarch_nb.actor.context import (
    Context,
    context,
    current_actor_name,
    current_rank,
    current_size,
    shutdown_context,
)
from monarch_nb.actor.controller import get_or_spawn_controller
from monarch_nb.actor.endpoint import Endpoint, concurrent_endpoint, endpoint
from monarch_nb.actor.future import Future
from monarch_nb.actor.heal import heal_mesh
from monarch_nb.actor.host_mesh import HostMesh, local_proc_mesh, proc_mesh, this_host, this_proc
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.actor.telemetry import get_meter, span, traced
from monarch_nb.actor.transport import ChannelTransport, enable_transport
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.exceptions import ActorError, RankTimeout, SupervisionError

__all__ = [
    "Accumulator",
    "Actor",
    "ActorError",
    "ActorMesh",
    "BootstrapCommand",
    "Channel",
    "ChannelTransport",
    "Checkpointed",
    "Context",
    "Endpoint",
    "Extent",
    "Future",
    "HealReport",
    "HostMesh",
    "MeshFailure",
    "Point",
    "Port",
    "PortReceiver",
    "ProcMesh",
    "RankTimeout",
    "RankedPortReceiver",
    "Shape",
    "SupervisionError",
    "ValueMesh",
    "as_endpoint",
    "attach_to_workers",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "default_bootstrap_cmd",
    "enable_transport",
    "endpoint",
    "get_meter",
    "get_or_spawn_controller",
    "heal_mesh",
    "hosts_from_config",
    "local_proc_mesh",
    "proc_mesh",
    "run_worker_loop_forever",
    "send",
    "shutdown_context",
    "span",
    "this_host",
    "this_proc",
    "traced",
    "unhandled_fault_hook",
]


# Programs replace the hook by assigning to this module: those who call it find here which one is in force.
_supervision.find_fault_hook_by(lambda: unhandled_fault_hook)

if TYPE_CHECKING:
    from monarch_nb.actor.workers import attach_to_workers, run_worker_loop_forever
    from monarch_nb.job.process import hosts_from_config

_WHERE = {
    "attach_to_workers": "monarch_nb.actor.workers",  # ZeroMQ: a tenth of what a program's start costs
    "hosts_from_config": "monarch_nb.job",  # jobs are built on actors
    "run_worker_loop_forever": "monarch_nb.actor.workers",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'monarch_nb.actor' has no attribute {name!r}")
