"""Decides the action on losses, and its time: pure. `healing` waits, and carries the action out.

One thing at a time is done to a group (`Turns`). After a loss a policy may heal or shrink the group by itself
(`Losses`): ranks that die together are healed together, and each further heal within the policy's window
waits longer than the one before.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from monarch_nb._host.controller.registry import Policy
from monarch_nb._protocol.states import OnFailure

T = TypeVar("T")

TOGETHER_S = 0.05
"""Ranks that die within this time are healed together."""
FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0
"""The second heal within the policy's window waits for the first delay, each further one twice as long, up
to the maximum.
"""


class Turns(Generic[T]):
    """The queues of work on groups, one queue per group: each piece of work waits for the one before.

    Example:
        >>> turns = Turns[str]()
        >>> turns.add("workers", "heal"), turns.add("workers", "resize"), turns.end_turn("workers")
        (True, False, 'resize')
        >>> turns.end_turn("workers"), turns.is_busy("workers")
        (None, False)
    """

    def __init__(self) -> None:
        self._turns: dict[str, deque[T]] = {}

    def add(self, group: str, turn: T) -> bool:
        """Enqueue work; True if it's to begin at once."""
        turns = self._turns.setdefault(group, deque())
        turns.append(turn)
        return len(turns) == 1

    def end_turn(self, group: str) -> T | None:
        """End the current turn of a group; return the next work, if any waits."""
        turns = self._turns[group]
        turns.popleft()
        if turns:
            return turns[0]
        del self._turns[group]
        return None

    def is_busy(self, group: str) -> bool:
        """Say whether work on a group is in progress."""
        return group in self._turns


class Losses:
    """The groups with lost ranks whose failure policy is due."""

    def __init__(self) -> None:
        self._due: set[str] = set()

    def lost(self, group: str, policy: Policy, now: float) -> float | str | None:
        """Record that a rank of a group has died. Return the seconds after which to call `due`; or a message
        about why nothing is done; or None, without a message.
        """
        if policy.on_failure not in (OnFailure.HEAL, OnFailure.SHRINK) or group in self._due:
            return None
        policy.heals = [t for t in policy.heals if now - t < policy.window_s]
        num = len(policy.heals)
        if num >= policy.max_restarts:
            return f"not healed: {num} heals in {policy.window_s:g} s are the limit (max_restarts)"
        policy.heals.append(now)
        self._due.add(group)
        return min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** (num - 1)) if num else TOGETHER_S

    def due(self, group: str, policy: Policy, *, is_running: bool) -> bool:
        """Say whether a group is to be healed, or shrunk, now; otherwise `due` is to be called again after
        `TOGETHER_S`: a group that runs cells can't shrink, and the survivors' cells are being ended.
        """
        if policy.on_failure == OnFailure.SHRINK and is_running:
            return False
        self._due.discard(group)
        return True
