"""The actors of a rank, and the rank's answers to other requests: what it waits for, where it is, a
breakpoint.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from monarch_nb._protocol import calls
from monarch_nb._protocol.debugging import DebugLine
from monarch_nb._protocol.events import DebugHold, DebugSettingsChanged, Renumbered
from monarch_nb._protocol.hang import HangFacts
from monarch_nb._protocol.questions import (
    AbortCollectives,
    AwaitedThings,
    CancelCell,
    DescribeProcessGroup,
    ProcessGroup,
    SetBreak,
    WhereNow,
)
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._protocol.resources import Standing
from monarch_nb._rank import collectives, rendezvous
from monarch_nb._runtime.actor_host import ActorHost
from monarch_nb._runtime.inbox import Inbox
from monarch_nb._transport import process_context
from monarch_nb._transport.call import answer_failure
from monarch_nb._transport.failure import describe
from monarch_nb._transport.pending import Body
from monarch_nb._wire.message import Message

if TYPE_CHECKING:
    from monarch_nb._rank.main import Rank


class RankActors(ActorHost):
    """The receiver of calls to a rank. The reading thread answers all but the main thread's own work, and
    never waits.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank.transport, rank.worker.inbox.put_message, rank.page, rank.debugger)
        self._rank = rank
        self.services |= {calls.DEBUG: self._debug, calls.OPEN_RENDEZVOUS: self._open_rendezvous_soon}

    @handles(Renumbered)
    def on_renumbered(self, event: Renumbered, sender: Sender) -> None:
        """Give this rank its new place in the mesh, which has other sizes."""
        self._rank.renumber(event)

    @handles(DebugHold)
    def on_debug_hold(self, event: DebugHold, sender: Sender) -> None:
        """Suspend the time-outs of process groups while a peer is stopped at a breakpoint; resume them when
        none is.
        """
        collectives.hold(event.on)

    @handles(DebugSettingsChanged)
    def on_debug_settings_changed(self, event: DebugSettingsChanged, sender: Sender) -> None:
        """Apply new settings of the debugger: whether ranks skip breakpoints, and stop on errors."""
        self._rank.debugger.set(skip=event.skip, on_error=event.on_error)

    def _interrupt_running(self, src: int, ref: int) -> bool:
        return self._rank.worker.interrupt(src, ref) or super()._interrupt_running(src, ref)

    def _inboxes(self) -> list[Inbox[Message]]:
        return [self._rank.worker.inbox, *super()._inboxes()]

    @handles(AwaitedThings)
    def do_awaited_things(self, request: AwaitedThings, sender: Sender) -> HangFacts:
        """Return what the threads wait for that run user code."""
        from monarch_nb._rank.hang import look_at_threads

        return look_at_threads(self._rank)

    def _debug(self, message: Message) -> Any:
        """Pass a line to a stopped thread; return the waiter to wake."""
        line: DebugLine = Body(self.transport, message).read(DebugLine)
        return self._rank.debugger.take_line(line.key, line.n, line.line)

    def _open_rendezvous_soon(self, message: Message) -> None:
        """Start a store for the run of a script. In a thread: it may have to import torch first."""
        threading.Thread(
            target=self._open_rendezvous, args=(message,), name="rendezvous", daemon=True
        ).start()

    def _open_rendezvous(self, message: Message) -> None:
        try:
            self._reply(message, rendezvous.open_for_run())
        except Exception as error:
            failure = describe(error, **process_context.whereabouts(), endpoint="open_rendezvous")
            answer_failure(self.transport, message, failure, marks_output=False)

    @handles(SetBreak)
    def do_set_break(self, request: SetBreak, sender: Sender) -> str:
        """Set a breakpoint; answers with a message about it."""
        return self._rank.debugger.add_break(request.file, request.line, request.condition)

    @handles(WhereNow)
    def do_where_now(self, request: WhereNow, sender: Sender) -> Standing:
        """Return where the threads are that run user code, and how many messages wait."""
        from monarch_nb._rank.where import where

        return where(self._rank)

    @handles(AbortCollectives)
    def do_abort_collectives(self, request: AbortCollectives, sender: Sender) -> int:
        """Abort the collectives that run here: all, or those of a world of a given size."""
        return collectives.abort(request.world_size)

    @handles(DescribeProcessGroup)
    def do_describe_process_group(self, request: DescribeProcessGroup, sender: Sender) -> ProcessGroup | None:
        """Describe the default process group."""
        return collectives.describe_group()

    @handles(CancelCell)
    def do_cancel_cell(self, request: CancelCell, sender: Sender) -> None:
        """Don't begin a cell that may not have begun yet."""
        self._rank.worker.cancel(request.n)
