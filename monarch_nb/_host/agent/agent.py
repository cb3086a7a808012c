"""A host process other than the controller: it executes the controller's requests for the ranks of its
machine, and forwards messages.

When the controller is gone it ends, with its ranks.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import zmq

from monarch_nb._host.agent.outbox import Outbox
from monarch_nb._host.agent.process import BEAT_S, LOST_AFTER_S, PREEMPT_S, HostProcess, visible_gpus
from monarch_nb._host.agent.resource_monitor import Rows
from monarch_nb._host.agent.stack_service import Found
from monarch_nb._host.agent.supervisor import Rank
from monarch_nb._host.agent.uplink import Uplink
from monarch_nb._host.config import HostConfig
from monarch_nb._host.warming import Zygote
from monarch_nb._protocol.base import Event, encode
from monarch_nb._protocol.environment import EnvironmentSwitched
from monarch_nb._protocol.events import (
    Beat,
    DialAnew,
    HostJoined,
    HostLeaving,
    HostLeft,
    HostLooked,
    HostPreempted,
    LastWord,
    Leave,
    LookNow,
    RankHeartbeat,
    RankIsUp,
    RanksEnded,
    RanksRevived,
    ResourcesSeen,
    StacksTaken,
    Switch,
    Switched,
    TakePlace,
    TakeStacks,
    WatchResources,
)
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._protocol.resources import MonitoredHost
from monarch_nb._protocol.work import Work
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.granted import granted_cores
from monarch_nb._wire.marks import Piece
from monarch_nb._wire.message import Message
from monarch_nb._wire.pieces import cut, join
from monarch_nb._wire.process import machine_id

SILENT_S = 60.0
"""How long the controller may be silent on an open connection: its process was stopped, or its machine is out
of reach.
"""


class HostAgent(HostProcess):
    """A host process other than the controller, connected to it. Owned by the loop thread."""

    def __init__(self, config: HostConfig, zygote: Zygote | None = None) -> None:
        super().__init__(config, zygote)
        self._uplink = Uplink(
            self.context, self.loop, config, self._take_link, self._on_disconnect, self.shut_down
        )
        self._outbox = Outbox(
            self.loop,
            partial(self.event, address.CONTROLLER),
            lambda: self.supervisor.is_stopping,
            lambda: self.router.holds_answers,
            lambda: self.supervisor.num_alive <= 1,
        )
        self._last_beat = self.loop.clock() + LOST_AFTER_S
        self._limit_s = LOST_AFTER_S
        self._has_heard = False
        """Whether the controller has sent anything."""
        self._join()
        self._is_notified = False
        self._watch_launcher(config.launcher_pid)
        self.loop.call_later(BEAT_S, self._beats)

    def _join(self) -> None:
        joined = HostJoined(self.hostname, os.getpid(), machine_id(), granted_cores(), len(visible_gpus()))
        self.event(address.CONTROLLER, joined)

    def _watch_launcher(self, pid: int | None) -> None:
        """End with the process that an engine has started on this host: the engine kills that when it takes
        the host away.
        """
        if pid is None:
            return
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            self.loop.call_later(0, self.shut_down)
            return

        def gone() -> None:
            self.loop.forget_file(fd)
            os.close(fd)
            self.shut_down()

        self.loop.watch_file(fd, gone)

    def _take_link(self, frames: list[zmq.Frame]) -> None:
        self._has_heard = True
        self.receive_remote(join([f.buffer for f in frames]))

    def before_accept(self, message: Message) -> None:
        """Assign output from now on to a cell that is about to begin. Earlier output of ranks belongs to the
        cell before, and is read first.
        """
        if message.kind == wire.FANOUT and message.src == address.CONTROLLER:
            receivers, inner_frame = wire.unpack_fanout(message)
            inner = wire.unpack(inner_frame)
            if inner.name == Work.RUN.encode():
                self.begin_cell([proc for proc, _ in receivers], inner.origin)

    def before_export(self, message: Message) -> None:
        if message.kind == wire.REPLY and message.dst == address.CONTROLLER:
            self.supervisor.drain()  # output of a cell is sent before the event of the cell's end

    def _on_disconnect(self) -> None:
        # A controller that only lost the connection is back within its beat; one that ended isn't.
        self._limit_s = LOST_AFTER_S
        self._last_beat = min(self._last_beat, self.loop.clock() - LOST_AFTER_S + 2 * BEAT_S)
        if not self._has_heard:
            self._join()  # the first message may have been lost with the connection

    def send_remote(self, host: int, frames: list[Any]) -> None:
        self._outbox.flush()
        self._uplink.send(cut(frames), copy=sum(map(len, frames)) < 1 << 16)

    # --- events of the controller and of ranks

    @handles(RankIsUp)
    def on_up(self, event: RankIsUp, sender: Sender) -> None:
        """Handle the event that a rank here is up: note it, and pass it on to the controller."""
        self.rank_is_up(sender.proc)
        self.event(address.CONTROLLER, event, src=sender.proc)

    @handles(RanksEnded)
    def on_exit(self, event: RanksEnded, sender: Sender) -> None:
        """Handle the end of ranks somewhere in the mesh: forget them, and tell the processes here."""
        for end in event.ends:
            self.router.forget(end.proc)
        self.spread_ends(event.ends)

    @handles(RanksRevived)
    def on_revived(self, event: RanksRevived, sender: Sender) -> None:
        """Tell the ranks here of ranks that have been started again anywhere in the mesh."""
        for proc in [p for p in self.local.routes if not address.is_client(p) and p not in event.procs]:
            self.event(proc, event)

    @handles(Beat)
    def on_beat(self, event: Beat, sender: Sender) -> None:
        """Handle a heartbeat of the controller: allow a longer silence. From now on its end is noticed by the
        connection's end; while the connection is open, the controller is only slow.
        """
        self._last_beat, self._limit_s = self.loop.clock(), SILENT_S

    @handles(WatchResources)
    def on_watch_resources(self, event: WatchResources, sender: Sender) -> None:
        """Have the resource monitor watch while somebody watches the state of the mesh."""
        self.resource_monitor.watch(event.on)

    @handles(LookNow)
    def on_look(self, event: LookNow, sender: Sender) -> None:
        """Handle the controller's request to look at everything now: do so, and report when it's done."""
        self.resource_monitor.look(lambda: self.event(address.CONTROLLER, HostLooked(event.ref)))

    @handles(TakeStacks)
    def on_take_stacks(self, event: TakeStacks, sender: Sender) -> None:
        """Handle the controller's request for the stacks of ranks that don't answer: take and send them."""

        def taken(found: Found) -> None:
            self.event(address.CONTROLLER, StacksTaken(event.ref, found))

        self.stack_service.take_stacks(event.procs, event.native, taken)

    @handles(Leave)
    def on_leave(self, event: Leave, sender: Sender) -> None:
        """Handle the dismissal of this host, which isn't needed any more: shut it down."""
        self.shut_down()

    @handles(TakePlace)
    def on_take_place(self, event: TakePlace, sender: Sender) -> None:
        """Handle the loss of another host: shut this one down, to begin anew in its place."""
        directory = f"{self.directory}.{event.ticket.host}"
        self.successor = self.config.with_ticket(event.ticket, directory)
        self.shut_down()

    # --- new keys of the mesh

    @handles(DialAnew)
    def on_dial_anew(self, event: DialAnew, sender: Sender) -> None:
        """Handle new keys of the mesh: dial the controller once more, and let it hear of that."""
        if event.controller_key == self.config.controller_key:
            return  # it's asked again, in case that a connection was lost with the message
        self.config = self.config.redirected(event.port, event.controller_key)
        self._uplink.dial_anew(self.config, self._frame(Beat()))

    @handles(Switch)
    def on_switch(self, event: Switch, sender: Sender) -> None:
        """Handle the last message by the old connection: use the one that was dialled anew."""
        self._uplink.switch(self._frame(LastWord()))

    @handles(Switched)
    def on_switched(self, event: Switched, sender: Sender) -> None:
        """Handle the news that all by the old connection has arrived: close it."""
        self._uplink.close_old()

    def _frame(self, event: Event) -> bytes:
        name = event.wire_name.encode()
        return wire.pack(wire.EVENT, src=self.me, dst=address.CONTROLLER, name=name, payload=encode(event))

    # --- the end

    def preempted(self) -> None:
        # a scheduler signals all processes of a job, and then the launcher passes its own signal on
        if self._is_notified:
            return
        self._is_notified = True
        self.event(address.CONTROLLER, HostPreempted(self.config.job))
        self.loop.call_later(PREEMPT_S, self.shut_down)

    def shut_down(self) -> None:
        self.event(address.CONTROLLER, HostLeaving())
        super().shut_down()

    def _beats(self) -> None:
        if self.loop.clock() - self._last_beat > self._limit_s:
            self.shut_down()
            return
        self.event(address.CONTROLLER, Beat())
        self.loop.call_later(BEAT_S, self._beats)

    def rank_ended(self, end: RankExit) -> None:
        super().rank_ended(end)
        self._outbox.add_end(end)

    def environment_switched(self, number: int, problem: str) -> None:
        self.event(address.CONTROLLER, EnvironmentSwitched(number, problem))

    def rank_heartbeat(self, proc: int, trouble: str) -> None:
        self.event(address.CONTROLLER, RankHeartbeat(proc, trouble))

    def resources_changed(self, rows: Rows, host: MonitoredHost | None) -> None:
        self.event(address.CONTROLLER, ResourcesSeen(rows, host))

    def rank_printed(self, rank: Rank, piece: Piece) -> None:
        self._outbox.add_printed(rank.proc, rank.rank, piece)

    def close_link(self) -> None:
        # the last message: the ends of all ranks here have been reported
        self.event(address.CONTROLLER, HostLeft())
        self._uplink.close()
