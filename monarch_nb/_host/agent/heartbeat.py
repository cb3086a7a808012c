"""Checks that the ranks of this machine respond: a rank that is stopped, or whose control thread doesn't
answer, is unresponsive, not dead.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch_nb._host.agent.supervisor import Supervisor
from monarch_nb._host.loop import Loop
from monarch_nb._protocol.questions import Ping
from monarch_nb._protocol.states import ProcState
from monarch_nb._wire import message as wire
from monarch_nb._wire.process import process_trouble

LOOK_S = 2.0
PING_S = 6.0
"""Time after a rank's last answer until the next question."""
SILENT_S = 10.0
"""Limit for the answer. Any thread that holds the interpreter's lock delays it."""

PING_REF = 1 << 50
"""The ref of all questions of this kind; smaller ones are numbers of cells, and questions of the
controller.
"""


class Heartbeat:
    """The check that asks the ranks of this machine in turn whether they respond. Owned by the loop thread.

    Args:
        me: proc id of this host process.
        send: sends a frame to a rank of this machine.
        on_change: called with a rank and its trouble; the text is empty if the rank responds again.
    """

    def __init__(
        self,
        me: int,
        loop: Loop,
        supervisor: Supervisor,
        send: Callable[[int, bytes], None],
        on_change: Callable[[int, str], None],
    ) -> None:
        self._me = me
        self._loop = loop
        self._supervisor = supervisor
        self._send = send
        self._on_change = on_change
        self._asked: dict[int, float] = {}
        """Time of the unanswered question to each proc, by the loop's clock: delays of this process don't
        count against the rank.
        """
        self._answered: dict[int, float] = {}
        self._trouble: dict[int, str] = {}
        loop.call_later(LOOK_S, self._look)

    def answered(self, src: int) -> None:
        """Record the time of a rank's answer."""
        self._asked.pop(src, None)
        self._answered[src] = self._loop.clock()

    def forget(self, proc: int) -> None:
        """Forget a rank that has ended."""
        for table in (self._asked, self._answered, self._trouble):
            table.pop(proc, None)

    def _look(self) -> None:
        self._loop.call_later(LOOK_S, self._look)
        self._supervisor.oom_kills.look()
        now = self._loop.clock()
        for proc, rank in list(self._supervisor.ranks.items()):
            if rank.state == ProcState.RUNNING:
                self._look_at(proc, rank.pid, now)

    def _look_at(self, proc: int, pid: int, now: float) -> None:
        trouble = process_trouble(pid, stopped_only=True)
        asked = self._asked.get(proc)
        if asked is None:
            if now - self._answered.setdefault(proc, now) >= PING_S:
                self._asked[proc] = now
                self._send(
                    proc,
                    wire.pack(wire.CALL, src=self._me, dst=proc, ref=PING_REF, name=Ping.wire_name.encode()),
                )
        elif not trouble and now - asked >= SILENT_S:
            trouble = (
                f"has not answered for {SILENT_S:g} s: something holds the interpreter's lock, or the "
                "machine is overloaded"
            )
        if trouble != self._trouble.get(proc, ""):
            self._trouble[proc] = trouble
            self._on_change(proc, trouble)
