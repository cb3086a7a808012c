"""Replica groups: their setup, their run, and their restart one by one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from monarch_nb._rank import rendezvous
from monarch_nb.actor.actor_mesh import Actor
from monarch_nb.actor.controller import mesh_controller
from monarch_nb.actor.endpoint import endpoint
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.exceptions import MeshError

if TYPE_CHECKING:
    import torch
    import torchft

SETUP_S = 60.0


class Lighthouse(Actor):
    """torchft's lighthouse: the server through which replica groups agree on the participants of the next
    step.
    """

    def __init__(self, min_replicas: int, join_timeout_ms: int) -> None:
        os.environ.setdefault("RUST_LOG", "warn")  # otherwise it writes several lines a step
        from torchft.coordination import LighthouseServer

        self.server = LighthouseServer(
            bind="[::]:0", min_replicas=min_replicas, join_timeout_ms=join_timeout_ms
        )

    @endpoint
    def address(self) -> str:
        """Return the address that the lighthouse listens on."""
        return str(self.server.address())

    def __cleanup__(self, error: BaseException | None) -> None:
        self.server.shutdown()


@dataclass(frozen=True)
class GroupResult:
    """The result of a run on one replica group.

    Attributes:
        values: return values of the function, by the ranks of the group; None if the group was given up.
        num_restarts: number of restarts.
        errors: failures that led to restarts, and the last one, if the group was given up.
    """

    values: ValueMesh[Any] | None
    num_restarts: int
    errors: tuple[MeshError, ...]


class ReplicaGroups:
    """The replica groups of a mesh.

    Args:
        mesh: its processes.
        dim: the dimension that counts the groups.
        min_replicas: number of groups that a step needs.
        join_timeout_ms: how long the lighthouse waits for further groups.
        max_restarts: maximum number of restarts of one group.

    Raises:
        ImportError: if torchft isn't installed.
        ValueError: for a dimension that the mesh doesn't have.

    Example:
        >>> groups = ReplicaGroups(mesh, "replicas", min_replicas=1)     # doctest: +SKIP
        >>> results = groups.run(train, 1000)                            # doctest: +SKIP
        >>> [r.num_restarts for r in results]                            # doctest: +SKIP
        [0, 1, 0]
    """

    def __init__(
        self,
        mesh: ProcMesh,
        dim: str = "replicas",
        *,
        min_replicas: int = 1,
        join_timeout_ms: int = 1000,
        max_restarts: int = 3,
    ) -> None:
        _require_torchft()
        if dim not in mesh.sizes:
            raise ValueError(f"the mesh has no dimension {dim!r}; it has {', '.join(mesh.sizes)}")
        self.mesh = mesh
        self.dim = dim
        self.max_restarts = max_restarts
        # Not in this program: training goes on when a kernel is restarted.
        self._lighthouse: Any = mesh_controller(
            "torchft_lighthouse", Lighthouse, min_replicas, join_timeout_ms
        ).get(SETUP_S)
        self.lighthouse: str = self._lighthouse.address.call_one().get(SETUP_S)

    def __len__(self) -> int:
        return self.mesh.sizes[self.dim]

    def part(self, group: int) -> ProcMesh:
        """Return the processes of one group."""
        part: ProcMesh = self.mesh.slice(**{self.dim: group})
        return part

    def set_up(self, group: int) -> None:
        """Start a group's store, and set torchft's environment variables on the group's ranks."""
        part = self.part(group)
        first = part.flatten("rank").slice(rank=0)
        address, port = first.execute(_start_store).get(SETUP_S).item()
        num = len(part)
        part.set_environment(
            [
                {
                    "TORCHFT_LIGHTHOUSE": self.lighthouse,
                    "REPLICA_GROUP_ID": str(group),
                    "NUM_REPLICA_GROUPS": str(len(self)),
                    "RANK": str(rank),
                    "WORLD_SIZE": str(num),
                    "MASTER_ADDR": address,
                    "MASTER_PORT": str(port),
                    # otherwise torchft writes several lines a step
                    "RUST_LOG": os.environ.get("RUST_LOG", "warn"),
                }
                for rank in range(num)
            ]
        ).get(SETUP_S)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[GroupResult]:
        """Call a function on the main threads of all groups. A group that fails is healed and called again;
        the others continue.

        Returns:
            the result of each group, in order.
        """
        results: list[GroupResult | None] = [None] * len(self)

        def follow(group: int) -> None:
            results[group] = self._run_group(group, function, args, kwargs)

        threads = [
            threading.Thread(target=follow, args=(g,), name=f"replica-group-{g}") for g in range(len(self))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [r for r in results if r is not None]

    def _run_group(self, group: int, function: Callable[..., Any], args: Any, kwargs: Any) -> GroupResult:
        errors: list[MeshError] = []
        while True:
            try:
                if errors:
                    self.part(group).heal()
                self.set_up(group)
                return GroupResult(
                    self.part(group).execute(function, *args, **kwargs).get(), len(errors), tuple(errors)
                )
            except MeshError as error:
                errors.append(error)
                if len(errors) > self.max_restarts:
                    return GroupResult(None, self.max_restarts, tuple(errors))


def make_manager(
    state_dict: Callable[[], Any],
    load_state_dict: Callable[[Any], None],
    *,
    min_replicas: int = 1,
    timeout_s: float = 30.0,
    **options: Any,
) -> torchft.Manager:
    """Return torchft's manager for this rank, with NCCL on a GPU and Gloo otherwise. Call this in the
    function that `run` calls.

    Args:
        state_dict: returns the state to send to a group that comes back.
        load_state_dict: loads that state on a group that comes back.
        min_replicas: the minimum number of groups that take part in a step.
        timeout_s: the time-out of collectives, in seconds.
        options: further arguments of `torchft.Manager`.

    Example:
        >>> manager = make_manager(lambda: model.state_dict(), model.load_state_dict)    # doctest: +SKIP
        >>> optimizer = torchft.Optimizer(manager, torch.optim.AdamW(model.parameters()))  # doctest: +SKIP
        >>> while manager.current_step() < 1000:                                         # doctest: +SKIP
        ...     optimizer.zero_grad()            # here the groups agree on who takes part
        ...     loss(model, batch).backward()
        ...     average_gradients(manager, model.parameters())
        ...     optimizer.step()                 # not taken if somebody has failed meanwhile
    """
    import torch
    import torchft

    timeout = timedelta(seconds=timeout_s)
    group = (
        torchft.ProcessGroupNCCL(timeout) if torch.cuda.is_available() else torchft.ProcessGroupGloo(timeout)
    )
    return torchft.Manager(
        pg=group,
        state_dict=state_dict,
        load_state_dict=load_state_dict,
        min_replica_size=min_replicas,
        timeout=timeout,
        replica_id=f"group{os.environ['REPLICA_GROUP_ID']}_",
        **options,
    )


def average_gradients(manager: torchft.Manager, parameters: Iterable[torch.Tensor]) -> None:
    """Average the gradients over all replica groups, by one all-reduce for each dtype.

    torchft 0.2's `DistributedDataParallel` does so, too, but its hook raises AssertionError if another group
    dies while it runs.
    """
    import torch

    gradients: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradients.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    for each in gradients.values():
        flat = torch.cat([g.reshape(-1) for g in each])
        manager.allreduce(flat).wait()
        for gradient, part in zip(each, flat.split([g.numel() for g in each]), strict=True):
            gradient.copy_(part.view_as(gradient))


def _require_torchft() -> None:
    try:
        import torchft  # noqa: F401
    except ImportError as error:
        raise ImportError("replica groups need torchft: pip install torchft") from error


def _start_store() -> tuple[str, int]:
    """Start the store of this rank's group; the previous store has no clients any more."""
    return rendezvous.start("a replica group")
