"""The record of a rank's exit: made by its host process, completed by the controller, sent to all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec
from msgspec.structs import fields


class RankExit(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a rank's process.

    Attributes:
        proc: its proc id.
        group: the group that it belongs to.
        rank: its number in the group.
        host: name of its host.
        pid: process id; 0 if it had none yet.
        signal: number of the signal that killed it, if one did.
        exit_code: its exit code, if it exited by itself.
        stopped: whether it was ended on purpose.
        reason: how it ended, in words, where that's known better than by signal or exit code.
        last_lines: the last lines that it printed.
        point: its coordinates, if it is still in the group.
        notified: watchers of cells that ran there, who are told by those cells: clients and their refs.
        restarted: whether another process takes its place at once.
        policy: what the group does when a rank is lost.
        handled: whether an error in the receiving process reports it. Never sent.
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
