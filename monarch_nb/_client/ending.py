"""The message about a mesh's end, in one sentence: who ended it, how, what is lost with it, and what to
type.
"""

from __future__ import annotations

import socket

from monarch_nb._client import children
from monarch_nb._client.connection_file import Connection
from monarch_nb._wire.process import count_oom_kills, describe_status
from monarch_nb.exceptions import MeshEnded, TransportClosed


class Ending:
    """The known facts about the end of one mesh, as a program that is connected to it sees it.

    Attributes:
        name: the mesh's; empty as long as it has none.
        how: how the controller has described the end, if it ended on purpose: "was stopped by ...".
        num_ranks: how many ranks it had, as far as this program knows.
        is_wanted: whether this program has asked for the end: then no message is needed.
        is_by_us: whether this program has stopped the mesh, rather than only left it.
    """

    def __init__(self, connection: Connection) -> None:
        self.name = connection.name
        self._is_far = bool(connection.host)
        self._pid = connection.pid
        self._num_oom_kills = count_oom_kills()
        self.how = ""
        self.num_ranks = 0
        self.is_wanted = False
        self.is_by_us = False

    def describe(self) -> str:
        """Return the sentence about the end. Called as soon as the controller has ended, while the kernel may
        still know how.
        """
        if self.how and self.name:
            return f"mesh {self.name!r} {self.how}; {self._next()}"
        how = describe_status(
            children.status_of(self._pid), out_of_memory=count_oom_kills() > self._num_oom_kills
        )
        if self._is_far:
            return (
                f"the connection to mesh {self.name!r} has ended: its relay process (pid {self._pid}) {how}; "
                "the mesh may go on. Come back by your invitation: %mesh attach FILE"
            )
        process = f"(pid {self._pid} on {socket.gethostname()}) {how}, and {self._lost()}; {self._next()}"
        if not self.name:
            return f"the controller process of this program's ranks {process}"
        return f"mesh {self.name!r} has ended: its controller process {process}"

    def left(self) -> TransportClosed:
        """Return the error that a handle raises once this program has stopped its mesh or left it."""
        if not self.name:
            return TransportClosed(f"the connection to this program's ranks was closed; {self._next()}")
        if self.is_by_us:
            return MeshEnded(f"mesh {self.name!r} has ended: this program has stopped it; {self._next()}")
        back = "by your invitation" if self._is_far else "if it still runs"
        what = "FILE" if self._is_far else self.name
        return TransportClosed(
            f"this program has left mesh {self.name!r}. Come back, {back}: %mesh attach {what}; then take "
            "new handles: those from before stay closed"
        )

    def _lost(self) -> str:
        if not self.num_ranks:
            return "what its ranks held is lost"
        ranks = f"its {self.num_ranks} ranks" if self.num_ranks > 1 else "its rank"
        return f"{ranks} and what they held are lost"

    def _next(self) -> str:
        if self._is_far:
            return "its owner can let you in again: %mesh share; then: %mesh attach FILE"
        if not self.name:
            return "spawn what is needed again: this_host() starts a new one"
        return f"start it anew: %mesh start {self.name}; what ran on it: monarch-nb history {self.name}"
