"""The record of how a rank ended: found out by its host process, completed by the controller, told to all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec
from msgspec.structs import fields


class RankExit(msgspec.Struct, frozen=True):
    """The end of a rank's process.

    Attributes:
        proc: its proc id.
        group: the spawn that it's of.
        rank: its number there.
        host: name of its host.
        pid: process id; 0 if it had none yet.
        signal: number of the signal that killed it, if one did.
        exit_code: if it has exited by itself.
        stopped: whether that was on purpose.
        reason: how it ended, in words, where that's known better than by signal or exit code.
        last_lines: what it has printed last.
        point: its coordinates, if the group still has it.
        notified: who watches cells that ran there and so hears of it anyway: clients and their refs.
        restarted: whether another process takes its place at once.
        policy: what the group does when a rank is lost.
        handled: whether something in the process that is told raises because of it. Never sent.
    """

    proc: int
    group: str
    rank: int
    host: str
    pid: int
    signal: int | None = None
    exit_code: int | None = None
    stopped: bool = False
    reason: str = ""
    last_lines: str = ""
    point: Mapping[str, int] = msgspec.field(default_factory=dict)
    notified: tuple[tuple[int, int], ...] = ()
    restarted: bool = False
    policy: str = ""
    handled: bool = False

    def plain(self) -> dict[str, Any]:
        """Return the end as plain data: as a message carries it, and as `RankFailure.end` shows it.

        >>> RankExit.of(RankExit(7, "workers", 0, "gpu-1", 4711, signal=9).plain()).signal
        9
        """
        found = {name: getattr(self, name) for name in _SENT}
        return {**found, "point": dict(self.point), "notified": [list(pair) for pair in self.notified]}

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """Return the end that `plain` has described.

        Raises:
            TypeError: if a field is missing, or isn't known here.
        """
        known = dict(found)
        return cls(**{**known, "notified": tuple((client, ref) for client, ref in known.get("notified", ()))})


_SENT = tuple(each.name for each in fields(RankExit) if each.name != "handled")
