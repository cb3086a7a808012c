"""How a mesh is: its state as people see it, stacks, and what ranks wait for."""

from __future__ import annotations

from monarch_nb._protocol.base import Plain, Request


class WatchStatus(Request[None], frozen=True):
    """Send a group's state, and then what changes, as fast as it's taken: what `monarch_nb.status`
    describes.
    """

    group: str


class StatusTaken(Request[None], frozen=True):
    """The state that was sent has been taken."""

    watch: int


class UnwatchStatus(Request[None], frozen=True):
    """Watch no longer."""

    watch: int


class Snapshot(Request[Plain], frozen=True):
    """Return a group's state: the fields of `MeshStatus`. `fresh`: whether all hosts look at everything
    first.
    """

    group: str
    fresh: bool = True


class Stacks(Request[dict[int, Plain]], frozen=True):
    """Return where ranks stand, by rank: "stacks", "how", "missing", "process". `native`: frames of C
    code, too.
    """

    procs: list[int]
    native: bool = False


class Hang(Request[dict[int, Plain]], frozen=True):
    """Return what ranks wait for, by rank: "facts", or what `Stacks` would say."""

    procs: list[int]
