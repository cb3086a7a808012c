"""States of hosts, ranks and their processes. Each is its word, which stands in messages, journal and JSON."""

from __future__ import annotations

from enum import StrEnum


class _State(StrEnum):
    """A word; shown as one."""

    def __repr__(self) -> str:
        return repr(self.value)


class HostState(_State):
    """A machine of a mesh, as the home knows it."""

    EXPECTED = "expected"
    """It hasn't joined yet."""
    UP = "up"
    LEAVING = "leaving"
    """It's about to end, on purpose."""
    LOST = "lost"
    STOPPED = "stopped"


class ProcState(_State):
    """A rank's process, as its host process and the home know it."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    """It's about to end, on purpose."""
    LOST = "lost"
    STOPPED = "stopped"


class RankState(_State):
    """A rank, as people see it."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    DEBUGGING = "debugging"
    """It stands at a breakpoint."""
    UNRESPONSIVE = "unresponsive"
    """It lives, but doesn't react."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    LOST = "lost"


class StopState(_State):
    """A thread that has stood at a breakpoint."""

    STOPPED = "stopped"
    RUNNING = "running"
    """It goes on by a step, and comes back."""
