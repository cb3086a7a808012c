"""The actors of a rank, and what a rank is asked besides: what it waits for, where it stands, to stop at a line."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from monarch_nb._post import here
from monarch_nb._post.failure import describe
from monarch_nb._post.pending import Body
from monarch_nb._protocol.events import DebugHold, DebugSettingsChanged, Renumbered
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._rank import collectives, rendezvous
from monarch_nb._runtime.actor_host import ActorHost
from monarch_nb._runtime.inbox import Inbox
from monarch_nb._wire.message import Message

if TYPE_CHECKING:
    from monarch_nb._rank.main import Rank


class RankActors(ActorHost):
    """Where calls to a rank arrive. All but the main thread's own work is answered in the reading thread, and never waits."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank.office, rank.worker.inbox.put_message, rank.page, rank.debugger)
        self._rank = rank

    @handles(Renumbered)
    def on_renumbered(self, event: Renumbered, sender: Sender) -> None:
        """This rank has another place."""
        self._rank.renumber(event)

    @handles(DebugHold)
    def on_debug_hold(self, event: DebugHold, sender: Sender) -> None:
        """A peer stands at a breakpoint, or none does any more."""
        collectives.hold(event.on)

    @handles(DebugSettingsChanged)
    def on_debug_settings_changed(self, event: DebugSettingsChanged, sender: Sender) -> None:
        """Breakpoints do something else from now on."""
        self._rank.debugger.set(skip=event.skip, on_error=event.on_error)

    def _on_system_call(self, message: Message) -> Any:
        return self._debug(message) if message.name == b"__debug__" else super()._on_system_call(message)

    def _interrupt_running(self, src: int, ref: int) -> bool:
        return self._rank.worker.interrupt(src, ref) or super()._interrupt_running(src, ref)

    def _inboxes(self) -> list[Inbox[Message]]:
        return [self._rank.worker.inbox, *super()._inboxes()]

    def _now_hang(self, message: Message) -> None:
        """Say what the threads that run user code wait for."""
        from monarch_nb._rank.hang import look_at_threads

        self._reply(message, look_at_threads(self._rank))

    def _debug(self, message: Message) -> Any:
        """Take a line for a thread that has stopped; return the waiter to wake."""
        fields = Body(self.office, message).value()
        return self._rank.debugger.take_line(fields["key"], fields["n"], fields["line"])

    def _now_open_rendezvous(self, message: Message) -> None:
        """Start a store for the run of a script. In a thread: it may have to import torch first."""
        threading.Thread(target=self._open_rendezvous, args=(message,), name="rendezvous", daemon=True).start()

    def _open_rendezvous(self, message: Message) -> None:
        try:
            self._reply(message, rendezvous.open_for_run())
        except Exception as error:
            self._reply_error(message, describe(error, **here.whereabouts(), endpoint="open_rendezvous"))

    def _now_break(self, message: Message) -> None:
        """Set a breakpoint; answers with what there is to say about it."""
        fields = Body(self.office, message).value()
        self._reply(message, self._rank.debugger.add_break(**fields))

    def _now_where(self, message: Message) -> None:
        """Say where the threads stand that run user code, and how much waits."""
        from monarch_nb._rank.where import where

        self._reply(message, where(self._rank))

    def _now_abort(self, message: Message) -> None:
        """Abort the collectives that run here: all, or those of a world of a given size."""
        self._reply(message, collectives.abort(**(Body(self.office, message).value() or {})))

    def _now_group(self, message: Message) -> None:
        """Describe the default process group."""
        self._reply(message, collectives.describe_group())

    def _now_cancel(self, message: Message) -> None:
        """Don't begin a cell that may not have begun yet."""
        self._rank.worker.cancel(Body(self.office, message).value())
        self._reply(message, None)
