"""Escalates the steps that end a cell. Pure: `cell_states` asks for steps, `cells` takes them.

1. SIGINT to the ranks at work
2. after `INTERRUPT_S`: collectives are aborted on all of its ranks together
3. after `ABORT_S` more: it's given up; the stuck ranks are named, with their stacks

Who asks again takes the next step at once. Afterwards process groups that were aborted are made anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from monarch_nb._protocol.states import EndReason

INTERRUPT_S = 3.0
ABORT_S = 10.0


class Step(IntEnum):
    """A step taken to end a cell."""

    INTERRUPT = 1
    ABORT = 2
    GIVE_UP = 3


@dataclass
class Escalation:
    """The steps taken to end one cell.

    Attributes:
        reason: why the cell shall end: user, failure or "timeout SECONDS".
        level: the last step that was taken; 0: none.
        num_aborted: on how many ranks something was aborted; None until all have answered.
    """

    reason: str
    level: int = 0
    num_aborted: int | None = None

    @property
    def aborted(self) -> bool:
        """Whether ranks were told to abort collectives: later errors are a consequence."""
        return self.level >= Step.ABORT

    @property
    def is_interrupt(self) -> bool:
        """Whether the cell counts as interrupted, and not as failed."""
        return self.reason != EndReason.FAILURE

    def next_step(self) -> Step | None:
        """Take the next step; None if all were taken."""
        if self.level == Step.GIVE_UP:
            return None
        self.level += 1
        return Step(self.level)
