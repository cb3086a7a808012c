"""The base class of engines, which provide hosts, report their state and take them back.

Pure policy: no sockets, and nothing of it runs in a host process. `look` is the only truth about an
allocation; no state is inferred from silence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from monarch_nb._client.tunnel import Tunnel, ssh_tunnel
from monarch_nb._wire.invitation import Invitation
from monarch_nb.exceptions import MeshError
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.spec import HostRange, HostSpec


class EngineError(MeshError):
    """The error of an engine that couldn't carry out a request; its text has the engine's message, and a
    command to type.
    """


class NoAnswer(EngineError):
    """The error of an engine that was asked and whose answer is lost, or can't be read: it may have done what
    it was asked.
    """


class State(StrEnum):
    """The state of an allocation."""

    QUEUED = "queued"
    GRANTED = "granted"
    LEAVING = "leaving"
    ENDED = "ended"


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of an engine.

    Attributes:
        queue: whether a request may wait for minutes or days, independently of the program.
        names: whether the hosts' names are known before they are requested.
        inside: whether a mesh's controller can run where the hosts are.
        keys: which of `spec.ASKED_OF_ENGINES` it can ask for.
    """

    queue: bool = False
    names: bool = False
    inside: bool = False
    keys: tuple[str, ...] = ("gpus", "python", "setup")


@dataclass(frozen=True)
class Inside:
    """The part of a request that only the program on its first host knows, which starts a mesh there.

    Attributes:
        spec: which hosts it asks for, and by which engine.
        invitation: path of the file that it writes the invitation to the mesh to.
        with_program: whether the mesh ends with it; elsewhere the engine ends all processes of the mesh.
        asks: whether it asks for hosts; otherwise, the program that has requested it does.
    """

    spec: HostSpec
    invitation: str
    with_program: bool = False
    asks: bool = True


@dataclass(frozen=True)
class Usable:
    """The usability of an engine here; if it can't be used, the reason, and what to type."""

    why_not: str = ""

    def __bool__(self) -> bool:
        return not self.why_not


@dataclass(frozen=True)
class Look:
    """The present state of an allocation, as the engine says.

    Attributes:
        reason: why it waits, or how it ended, in the engine's own words.
        trouble: what will keep it from ever starting, with the remedy; empty if nothing.
        starts_at, ends_at: seconds since the epoch, as estimated; None if unknown.
        nodes: its nodes.
    """

    state: State
    reason: str = ""
    trouble: str = ""
    starts_at: float | None = None
    ends_at: float | None = None
    nodes: tuple[str, ...] = ()


class Engine(ABC):
    """The base class of all engines. Methods are called in the client, and may take seconds; all but `usable`
    raise `EngineError`.
    """

    name: ClassVar[str]
    can: ClassVar[Capabilities] = Capabilities()
    own_keys: ClassVar[tuple[str, ...]] = ()
    """Keys allowed in the engine's own table of a profile; empty: any."""

    @abstractmethod
    def usable(self, spec: HostSpec) -> Usable:
        """Return whether this engine is installed and reachable. Takes less than 2 s if it answers."""

    @abstractmethod
    def check(self, spec: HostSpec) -> list[str]:
        """Return the errors of a request that are known before it's submitted, such as 9 nodes of 3, or a
        limit of the partition.
        """

    def keys(self, spec: HostSpec) -> Collection[str]:
        """Return those of `spec.ASKED_OF_ENGINES` that it can ask for."""
        return self.can.keys

    def completed(self, spec: HostSpec) -> HostSpec:
        """Return a request whose unset fields are filled in from the available resources."""
        return spec

    @abstractmethod
    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        """Request the hosts, without waiting; return the allocation with the engine's id of the request."""

    def submit_inside(self, allocation: Allocation) -> Allocation:
        """Request hosts on the first of which the mesh's controller runs; return the allocation with the
        engine's id. An engine that runs a controller alone sets `controller_id` instead: the hosts are
        requested from it. See `monarch_nb.mesh.inside_job`.
        """
        raise EngineError(
            f"engine {self.name} can't have the controller inside: leave --controller inside away"
        )

    def recalled(self, allocation: Allocation) -> Allocation:
        """Return an allocation without an engine's id with that id, if the engine knows its request by name.

        Raises:
            EngineError: if the engine can't say.
        """
        return allocation

    def names_hosts(self, spec: HostSpec) -> bool:
        """Return whether hosts are asked for by their names."""
        return self.can.names

    def finds(self, spec: HostSpec) -> bool:
        """Return whether `recalled` finds what there is."""
        return True

    def invitation(self, allocation: Allocation) -> str:
        """Return the invitation to a mesh with its controller inside, as JSON; empty until there is one."""
        return ""

    def tunnel(self, allocation: Allocation) -> Tunnel | None:
        """Return the way to a mesh with its controller inside; None if it can be reached from here."""
        return ssh_tunnel(allocation.spec.login) if allocation.spec.login else None

    @abstractmethod
    def look(self, allocation: Allocation) -> Look:
        """Return the present state of an allocation: of its controller, if no hosts were requested yet."""

    @abstractmethod
    def end_allocation(self, allocation: Allocation) -> None:
        """Release all hosts. Does nothing if the allocation has already ended."""

    def end_controller(self, allocation: Allocation) -> None:
        """End a controller that runs alone, and with it the mesh; most engines have none."""
        return

    def further(self, asked: Sequence[Allocation], num: int) -> HostSpec:
        """Return the specification of a request for `num` more hosts for a mesh, in addition to those of
        `asked`.

        Raises:
            EngineError: if it's known that there are no more hosts; the error shows what to type.
        """
        return replace(asked[0].spec, hosts=HostRange(num, num))

    def release(self, allocation: Allocation, nodes: Sequence[str]) -> Allocation:
        """Release hosts that have left their mesh; return the rest of the allocation.

        Most engines grant hosts one by one, and a host is released when its launcher ends.
        """
        return allocation

    def extend(self, allocation: Allocation, seconds: float) -> None:
        """Request more time. An engine without limits can't."""
        raise EngineError(
            f"{allocation.described()}: engine {self.name} gives no time that could be extended"
        )

    def logs(self, allocation: Allocation) -> list[str]:
        """Return the last output of failed launchers: it is shown when hosts don't join."""
        return []

    def script(self, allocation: Allocation) -> str:
        """Return the script that will be run or submitted, for display."""
        raise EngineError(f"engine {self.name} has no script to show")
