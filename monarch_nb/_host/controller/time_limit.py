"""Handles the time limit of hosts: programs are warned, states are saved, and finally no cells are
accepted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from monarch_nb._host.controller.time_limit_state import Step, TimeLimitState
from monarch_nb._protocol.events import Notice
from monarch_nb._protocol.journal import JournalEntry
from monarch_nb._protocol.programs import Cost, Limit, SetNotice, SetTimeLimit
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._protocol.states import EntryKind
from monarch_nb._units import duration

if TYPE_CHECKING:
    from monarch_nb._host.controller.checkpoints import CheckpointService
    from monarch_nb._host.controller.clients import ClientService
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.controller.status_publisher import StatusPublisher
    from monarch_nb._host.loop import Loop

UNLIMITED_S = 300 * 86400.0
LOOK_S = 30.0
"""Maximum time between two looks at the clock: it may be set, and machines sleep."""


class Parts(Protocol):
    """The parts of a controller that the time limit needs."""

    checkpoints: CheckpointService
    clients: ClientService
    journal: JournalService
    loop: Loop
    name: str
    registry: Registry
    status_publisher: StatusPublisher


class TimeLimit:
    """The service that warns programs before their hosts' time is over, and has states saved. Owned by the
    loop thread.
    """

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._state = TimeLimitState()
        self.job = ""
        """What the engine calls the job that ends first; empty if no engine has given hosts."""
        self.cost: Cost | None = None
        """What the hosts have cost; None if that isn't known."""
        self._looks = 0
        """Number of the planned look, which invalidates earlier plans."""

    @property
    def ends_at(self) -> float | None:
        """When hosts are taken away, in seconds since the epoch; None if that isn't known, or practically
        unlimited: engines report a year then.
        """
        ends_at = self._state.ends_at
        return None if ends_at is None or ends_at - time.time() > UNLIMITED_S else ends_at

    @handles(SetTimeLimit)
    def do_set_time_limit(self, request: SetTimeLimit, sender: Sender) -> None:
        """Set when an engine takes the hosts away, and what they have cost."""
        self._state.set(request.ends_at, time.time())
        self.job, self.cost = request.job, request.cost
        self._controller.status_publisher.touch()
        self._look()

    @handles(SetNotice)
    def do_set_notice(self, request: SetNotice, sender: Sender) -> Limit:
        """Set how long before the end programs are warned, unless that is only asked; return the present
        setting.
        """
        if request.changes:
            self._state.set_notice(request.notice_s)
            self._look()
        return Limit(self._state.ends_at, self._state.notice_s)

    def why_closed(self) -> str:
        """Return why no cell is accepted any more; empty if cells are."""
        if not self._state.is_closing(time.time()) or self.ends_at is None:
            return ""
        left = duration(max(0, round(self.ends_at - time.time())))
        return f"{self.job} ends in {left}: a cell would be cut off. More time: %mesh extend 1h"

    def describe_end(self, job: str) -> str:
        """Describe, in words, a job whose hosts were told to end."""
        is_up = self._state.is_up(time.time())
        if is_up is None:
            return f"{job}, which was cancelled or whose time is up"
        return f"{job}, whose time is up" if is_up else f"{job}, which was cancelled"

    def _look(self) -> None:
        self._looks += 1
        steps = self._state.due(time.time())
        if Step.TELL in steps:
            self._tell()
        if Step.SAVE in steps:
            self._save()
        next_s, n = self._state.next_s(time.time()), self._looks
        if next_s is not None:
            delay_s = min(next_s, LOOK_S) + 0.01
            self._controller.loop.call_later(delay_s, lambda: self._look() if n == self._looks else None)

    def _tell(self) -> None:
        controller = self._controller
        left = duration(round((self.ends_at or 0.0) - time.time()))
        hosts = f"the hosts of mesh {controller.name!r}"
        text = f"{self.job} ends in {left}, and {hosts} with it. More time: %mesh extend 1h"
        controller.journal.note(0, JournalEntry(EntryKind.NOTE, text=text))
        controller.clients.tell_listeners(Notice("", text))

    def _save(self) -> None:
        ranks = {p.proc for p in self._controller.registry.alive()}
        self._controller.checkpoints.save_then(
            ranks, lambda: None, "the hosts' time is nearly up: states are saved"
        )
