"""Computes when hosts are taken away, and which steps are due before: pure. `time_limit` provides the time,
and takes the steps.
"""

from __future__ import annotations

from enum import StrEnum

SAVE_S = 120.0
"""Time before the limit at which states are saved once more."""
CLOSE_S = 20.0
"""Time before the limit in which no cells are accepted, since they would be cut off."""
NOTICE_S = 600.0
OVER_S = 180.0
"""Time after the limit for which an end is attributed to it: engines may be late."""


class Step(StrEnum):
    """A step to be taken before the time limit."""

    TELL = "tell"
    SAVE = "save"


class TimeLimitState:
    """The time at which the hosts of a mesh are taken away, as their engine says, and the steps before it.
    Times are seconds since the epoch.

    Attributes:
        ends_at: the time limit; None: none, or not known.
        notice_s: seconds before the limit at which programs are told and states are saved; None: never.

    Example:
        >>> limit = TimeLimitState()
        >>> limit.set(1000.0, now=0.0)
        >>> limit.next_s(now=0.0), limit.due(now=399.0), limit.due(now=400.0)
        (400.0, [], [<Step.TELL: 'tell'>, <Step.SAVE: 'save'>])
        >>> limit.due(now=401.0), limit.next_s(now=401.0), limit.is_closing(now=985.0)
        ([], 479.0, True)
    """

    def __init__(self) -> None:
        self.ends_at: float | None = None
        self.notice_s: float | None = NOTICE_S
        self._done: set[tuple[float, Step]] = set()

    def set(self, ends_at: float | None, now: float) -> None:
        """Set the limit. Steps that were taken are due again if there's time for them, and if there was no
        limit before.
        """
        self.ends_at = ends_at
        self._done = {
            (before_s, step) for before_s, step in self._done if not self._lies_ahead(before_s, now)
        }

    def set_notice(self, notice_s: float | None) -> None:
        """Set how long before the limit programs are warned."""
        self.notice_s, self._done = notice_s, set()

    def _lies_ahead(self, before_s: float, now: float) -> bool:
        return self.ends_at is None or now < self.ends_at - before_s

    def _plan(self) -> list[tuple[float, Step]]:
        if self.notice_s is None:
            return []
        last_s = min(SAVE_S, self.notice_s / 2)
        return [
            (self.notice_s, Step.TELL),
            (self.notice_s, Step.SAVE),
            (last_s, Step.TELL),
            (last_s, Step.SAVE),
        ]

    def due(self, now: float) -> list[Step]:
        """Return the steps that are due, each once; they count as taken then."""
        if self.ends_at is None or now >= self.ends_at:
            return []
        found = [
            each for each in self._plan() if each not in self._done and not self._lies_ahead(each[0], now)
        ]
        self._done.update(found)
        return list(dict.fromkeys(step for _, step in found))

    def next_s(self, now: float) -> float | None:
        """Return the seconds until the next look; None if no step is to come."""
        if self.ends_at is None:
            return None
        ahead = [self.ends_at - s - now for s, step in self._plan() if (s, step) not in self._done]
        return max(0.0, min(ahead)) if ahead else None

    def is_closing(self, now: float) -> bool:
        """Say whether it's too late to begin anything."""
        return self.notice_s is not None and self.ends_at is not None and 0 <= self.ends_at - now <= CLOSE_S

    def is_up(self, now: float) -> bool | None:
        """Return whether a host that ends now is ended by the limit; None if no limit is known."""
        return None if self.ends_at is None else -CLOSE_S <= now - self.ends_at <= OVER_S
