"""Decides when a mesh ends by its lease: pure. `lease` provides the time, waits, and ends the mesh."""

from __future__ import annotations

import math

from monarch_nb._units import duration

LOOK_S = 5.0
"""Maximum time between two checks whether the mesh is used."""
MIN_LOOK_S = 0.05
"""Minimum time between two checks, however short the lease is."""


class LeaseState:
    """The state of a mesh's lease: how long the mesh has been unused, and how long it may be.

    All times are those of one monotonic clock, in seconds.

    Attributes:
        idle_timeout_s: seconds that a mesh lives without a client and a running cell; None: it has no lease.

    Example:
        >>> lease = LeaseState(60.0, now=0.0)
        >>> lease.next_look_s(now=0.0)
        5.0
        >>> lease.look(5.0, is_held=True, has_name=True), lease.left_s(30.0, is_held=False)
        ('', 35.0)
        >>> lease.look(65.0, is_held=False, has_name=True)
        'ended by its lease: no client and no running cell for 1 min'
    """

    def __init__(self, idle_timeout_s: float | None, now: float) -> None:
        self.idle_timeout_s = idle_timeout_s
        self._idle_since = now
        self._look_at = math.inf

    def begin_anew(self, now: float) -> None:
        """Restart the idle time at `now`: the mesh was in use until then."""
        self._idle_since = now

    def next_look_s(self, now: float) -> float | None:
        """Return the seconds until the next look; None if there's no lease, or a look is already planned."""
        if self.idle_timeout_s is None:
            return None
        delay_s = min(max(self.idle_timeout_s, MIN_LOOK_S), LOOK_S)
        if self._look_at <= now + delay_s:
            return None
        self._look_at = now + delay_s
        return delay_s

    def look(self, now: float, *, is_held: bool, has_name: bool) -> str:
        """Return why the mesh ends now; an empty text if it continues.

        Args:
            is_held: whether a client or a cell keeps it alive.
            has_name: whether it can still be found, if it has a name at all.
        """
        if now >= self._look_at:
            self._look_at = math.inf
        if self.idle_timeout_s is None:
            return ""
        if is_held:
            self.begin_anew(now)
            return ""
        if not has_name:
            return "ended: its files were removed, and another mesh has its name"
        if now - self._idle_since < self.idle_timeout_s:
            return ""
        return f"ended by its lease: no client and no running cell for {duration(self.idle_timeout_s)}"

    def left_s(self, now: float, *, is_held: bool) -> float | None:
        """Return the seconds until the unused mesh ends; None while it is in use, or if it has no lease."""
        if self.idle_timeout_s is None or is_held:
            return None
        return round(max(0.0, self.idle_timeout_s - (now - self._idle_since)), 1)
