"""Hosts that torchrun has started: each node's first process runs a launcher, and the hosts end with it."""

from __future__ import annotations

import os
from dataclasses import replace

from monarch_nb._wire.invitation import Invitation
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines.base import Capabilities, Engine, EngineError, Look, State, Usable
from monarch_nb.job.spec import HostSpec
from monarch_nb.job.torchrun import BY_HAND, Meeting, missing

_meetings: list[Meeting] = []


def use(meeting: Meeting) -> None:
    """Set the meeting of this program as the source of hosts."""
    _meetings[:] = [meeting]


class Torchrun(Engine):
    """The engine of hosts that torchrun has started, together with this program."""

    name = "torchrun"
    can = Capabilities(keys=("gpus",))

    def usable(self, spec: HostSpec) -> Usable:
        if _meetings:
            return Usable()
        return Usable(missing(os.environ) or f"only the program that torchrun runs asks for it: {BY_HAND}")

    def check(self, spec: HostSpec) -> list[str]:
        num = len(_meetings[0].nodes.firsts)
        return [] if spec.wanted.least <= num else [f"torchrun has {num} nodes, not {spec.wanted}"]

    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        if not _meetings:
            raise EngineError(f"torchrun gives no hosts later than at its start: {BY_HAND}")
        (meeting,) = _meetings
        meeting.hand_out(invitation)
        return replace(allocation, parts=tuple(dict.fromkeys(meeting.nodes.of_ranks)))

    def look(self, allocation: Allocation) -> Look:
        if not _meetings and not os.path.exists(f"/proc/{allocation.submitted_by}"):
            return Look(State.ENDED, "the program that torchrun started has ended")
        return Look(State.GRANTED, nodes=allocation.parts)

    def end_allocation(self, allocation: Allocation) -> None:
        """Do nothing: the hosts end with their mesh, or with the program that torchrun has started."""

    def logs(self, allocation: Allocation) -> list[str]:
        return [w for m in _meetings for w in m.messages([f"failed/{rank}" for rank in m.nodes.firsts])]

    def script(self, allocation: Allocation) -> str:
        return f"{BY_HAND.replace('NAME', allocation.mesh)}"
