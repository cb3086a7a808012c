"""The host process: its sockets, and its handlers of requests.

What the controller (`controller`) and host agents (`far`) share: ranks of this machine, local sockets,
messages to and fro.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket as sockets
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import zmq

from monarch_nb._host.agent.heartbeat import PING_REF, Heartbeat
from monarch_nb._host.agent.package_service import PackageService
from monarch_nb._host.agent.resource_monitor import WHERE_REF, ResourceMonitor, Rows
from monarch_nb._host.agent.router import Router
from monarch_nb._host.agent.stack_service import StackService
from monarch_nb._host.agent.supervisor import Rank, Supervisor
from monarch_nb._host.agent.workspace_service import WorkspaceService
from monarch_nb._host.config import HostConfig
from monarch_nb._host.local_sockets import LocalSockets
from monarch_nb._host.loop import Loop
from monarch_nb._host.request import RequestError
from monarch_nb._host.warming import Zygote
from monarch_nb._protocol.base import Event, encode
from monarch_nb._protocol.environment import SwitchEnvironment
from monarch_nb._protocol.events import RanksEnded
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.rank_spec import HostFacts, SharedSpec
from monarch_nb._protocol.ranks import SignalRanks, StartRanks, StopRanks
from monarch_nb._protocol.registry import LATER, Handler, Handlers, Sender, handles
from monarch_nb._protocol.resources import MonitoredHost
from monarch_nb._protocol.states import ProcState
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.directory import private_directory
from monarch_nb._wire.marks import Piece
from monarch_nb._wire.message import Message

BEAT_S = 1.0
LINGER_S = 0.2
LOST_AFTER_S = 4.0
PREEMPT_S = 30.0
"""How long a host that is about to be taken away waits for its ranks to save their states."""


class HostProcess:
    """The state and behaviour that the controller and host agents share: the base of both. Owned by the loop
    thread.

    Args:
        zygote: the zygote that was started already, if one was.
    """

    def __init__(self, config: HostConfig, zygote: Zygote | None = None) -> None:
        self.config = config
        self.index = config.host
        self.me = address.host_proc(self.index)
        self.directory = config.directory
        self.hostname = config.label or sockets.gethostname()
        self.successor: HostConfig | None = None
        """The configuration with which to begin again, for a spare that takes another host's place."""
        private_directory(self.directory)
        self.loop = Loop()
        self.handlers = Handlers(self, WorkspaceService(self), PackageService(self))
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 65535)
        self.local = LocalSockets(self.loop, self.directory, self._take_local)
        self.router = Router(self.me, self.loop, self.send_local, self.send_remote)
        self.supervisor = Supervisor(
            self.loop,
            self.index,
            self.hostname,
            self.rank_ended,
            self.rank_printed,
            config.sys_path,
            self.directory,
            zygote,
        )
        self.heartbeat = Heartbeat(self.me, self.loop, self.supervisor, self.send_local, self.rank_heartbeat)
        self.resource_monitor = ResourceMonitor(
            self.me,
            self.directory,
            self.loop,
            self.supervisor,
            self.send_local,
            lambda rows, host: self.resources_changed(rows, host),
        )
        self.stack_service = StackService(self.directory, self.loop, self.supervisor)
        if config.warm:
            self.supervisor.warm_up()
        self.local.listen(self.me)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Handle the signal that this machine is about to be taken away: write a file that ranks check (they
        may receive the signal as well), and begin to leave.
        """
        with suppress(OSError):
            os.close(os.open(address.notice_path(self.directory), os.O_CREAT | os.O_WRONLY, 0o600))
        self.loop.call_soon_threadsafe(self.preempted)

    # --- sending

    def send_local(self, dst: int, frame: bytes) -> None:
        """Send to a process of this machine; dropped if the process is gone."""
        if self.local.has_route(dst) or self.local.listens(dst) or self._is_coming(dst):
            self.local.send(dst, frame)

    def _is_coming(self, dst: int) -> bool:
        rank = self.supervisor.ranks.get(dst)
        return rank is not None and rank.state == ProcState.STARTING

    def send_remote(self, host: int, frames: list[Any]) -> None:
        """Send frames towards another host."""
        raise NotImplementedError

    def event(self, dst: int, event: Event, src: int | None = None) -> None:
        """Send an event to one process; `src`: in whose name, if not our own."""
        self._send_event(dst, event.wire_name.encode(), encode(event), self.me if src is None else src)

    def event_to_all(self, procs: Sequence[int], event: Event) -> None:
        """Send an event to several processes; it may be long, and is encoded once."""
        name, payload = event.wire_name.encode(), encode(event)
        for proc in procs:
            self._send_event(proc, name, payload, self.me)

    def _send_event(self, dst: int, name: bytes, payload: bytes, src: int) -> None:
        frame = wire.pack(wire.EVENT, src=src, dst=dst, name=name, payload=payload)
        if address.host_of(dst) == self.index:
            self.send_local(dst, frame)
        else:
            self.send_remote(address.host_of(dst), [frame])

    def reply(self, dst: int, ref: int, value: object, *, error: bool = False, last: bool = False) -> None:
        """Answer a request."""
        if not ref:
            return
        frame = wire.pack(
            wire.REPLY,
            src=self.me,
            dst=dst,
            ref=ref,
            flags=(wire.ERROR if error else 0) | (wire.END if last else 0),
            payload=encode(value),
        )
        if address.host_of(dst) == self.index:
            self.send_local(dst, frame)
        else:
            self.send_remote(address.host_of(dst), [frame])

    # --- receiving

    def _take_local(self, message: Message) -> None:
        if message.kind == wire.RELEASE and message.dst == self.me:
            self.router.pool.release(message.ref, message.src)
        elif message.dst == self.me and message.kind != wire.FANOUT:
            self.handle(message)
        elif address.host_of(message.dst) != self.index:
            self.before_export(message)
            self.router.export(message)
        elif message.kind == wire.FANOUT:
            self.router.accept(message.frame, ())
        else:
            self.send_local(message.dst, message.frame)

    def before_export(self, message: Message) -> None:
        """Prepare for a message of a rank here to leave for another host: for subclasses."""

    def before_accept(self, message: Message) -> None:
        """Prepare for ranks here to get a message of another host: for subclasses."""

    def begin_cell(self, procs: Sequence[int], origin: int) -> None:
        """Assign unmarked output of ranks here to the cell that they are about to run."""
        self.supervisor.drain()
        for proc in procs:
            rank = self.supervisor.ranks.get(proc)
            if rank is not None:
                for output in rank.outputs:
                    output.begin_origin(origin)

    def receive_remote(self, frames: Sequence[Any]) -> None:
        """Take a message from the link to other hosts."""
        frame = bytes(frames[0])
        message = wire.unpack(frame)
        if address.host_of(message.dst) != self.index:
            self.send_remote(address.host_of(message.dst), [frame, *frames[1:]])
        elif message.dst == self.me and message.kind != wire.FANOUT:
            self.handle(message)
        else:
            self.before_accept(message)
            self.router.accept(frame, frames[1:])

    def handle(self, message: Message) -> None:
        """Handle a message to this host process."""
        if message.kind in (wire.REPLY, wire.COMBINED):
            if message.ref == PING_REF:
                self.heartbeat.answered(message.src)
            elif message.ref == WHERE_REF:
                payload = b"" if message.flags & wire.ERROR else message.payload
                self.resource_monitor.answered(message.src, payload)
            else:
                self.take_answer(message)
            return
        if message.kind == wire.EVENT:
            handler = self.handlers.find(message.name.decode("utf-8", "replace"))
            if handler is not None:
                handler(message.payload, Sender(message.src))
        elif message.kind == wire.CONTROL:
            self._answer(message)

    def _answer(self, message: Message) -> None:
        """Answer a request in any case, since the asker waits."""
        try:
            answer = self.handler_of(message)(message.payload, Sender(message.src, message.ref))
            if answer is not LATER:
                self.reply(message.src, message.ref, answer)
        except (RequestError, ValueError) as error:
            self.reply(message.src, message.ref, str(error), error=True)
        except Exception as error:
            known = isinstance(error, LookupError) and not isinstance(error, KeyError | IndexError)
            text = (
                str(error)
                if known
                else f"the host process could not do this: {type(error).__name__}: {error}"
            )
            self.reply(message.src, message.ref, text, error=True)
            if not known:
                raise  # into the log

    def handler_of(self, message: Message) -> Handler:
        """Return the handler of a request.

        Raises:
            RequestError: if nothing does.
        """
        name = message.name.decode("utf-8", "replace")
        found = self.handlers.find(name)
        if found is None:
            raise RequestError(f"this host process knows no request {name!r}; is it of another version?")
        return found

    def take_answer(self, message: Message) -> None:
        """Handle a rank's answer to a request of this process."""

    # --- ranks of this machine

    @handles(StartRanks)
    def do_start_ranks(self, request: StartRanks, sender: Sender) -> None:
        """Start ranks here. Requested by the controller."""
        launched = bool(self.config.launcher_pid)
        facts = HostFacts(self.directory, self.hostname, visible_gpus(), launched)
        spec = SharedSpec(request.spec, request.place, facts)
        self.supervisor.start(request.ranks, spec, request.method)

    @handles(StopRanks)
    def do_stop_ranks(self, request: StopRanks, sender: Sender) -> None:
        """Stop ranks here."""
        self.supervisor.stop(request.procs, request.grace_s)

    @handles(SignalRanks)
    def do_signal_ranks(self, request: SignalRanks, sender: Sender) -> None:
        """Send a signal to ranks here."""
        others = {
            p for p in request.procs if request.cell and self.resource_monitor.does_other(p, request.cell)
        }
        self.supervisor.signal([p for p in request.procs if p not in others], request.number)

    @handles(SwitchEnvironment)
    def do_switch_environment(self, request: SwitchEnvironment, sender: Sender) -> None:
        """Start ranks in another environment from now on. Requested by the controller."""
        number = request.number
        self.supervisor.switch(
            request.environment, lambda problem: self.environment_switched(number, problem)
        )

    def environment_switched(self, number: int, problem: str) -> None:
        """Report that ranks here are started in another environment from now on, or why not."""
        raise NotImplementedError

    def rank_is_up(self, proc: int) -> None:
        """Record that a rank here has started."""
        rank = self.supervisor.ranks.get(proc)
        if rank is not None and rank.state == ProcState.STARTING:
            rank.state = ProcState.RUNNING

    def rank_ended(self, end: RankExit) -> None:
        """Drop all data of a rank here that has ended, including its socket."""
        self.local.drop_route(end.proc)
        self.heartbeat.forget(end.proc)
        self.resource_monitor.forget(end.proc)
        self.stack_service.forget(end.proc)
        self.router.forget(end.proc)
        with suppress(OSError):
            os.unlink(address.socket_path(self.directory, end.proc))

    def rank_heartbeat(self, proc: int, trouble: str) -> None:
        """Report that a rank here is unresponsive, or responds again (no trouble)."""
        raise NotImplementedError

    def resources_changed(self, rows: Rows, host: MonitoredHost | None) -> None:
        """Report changes in the readings of ranks here, or of this machine."""
        raise NotImplementedError

    def rank_printed(self, rank: Rank, piece: Piece) -> None:
        """Pass on a piece of output that a rank here has printed."""
        raise NotImplementedError

    def spread_ends(self, ends: Sequence[RankExit]) -> None:
        """Tell all processes of this machine which ranks have ended."""
        routes = self.local.routes
        others = [
            proc
            for proc, rank in self.supervisor.ranks.items()
            if rank.state == ProcState.RUNNING and proc not in routes
        ]
        self.event_to_all([*(p for p in routes if p != self.me), *others], RanksEnded(tuple(ends)))

    # --- the end

    def run(self) -> None:
        """Serve until shut down; clean up."""
        try:
            try:
                self.loop.run()
            finally:
                self.supervisor.close()
            self.local.close(LINGER_S)
            self.close_link()
            self.context.term()
            self.router.pool.close()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
            with suppress(OSError):
                os.rmdir(os.path.dirname(self.directory))

    def close_link(self) -> None:
        """Close the sockets to other hosts."""

    def preempted(self) -> None:
        """Leave after states are saved: this machine is about to be taken away (SIGTERM)."""
        self.shut_down()

    def shut_down(self) -> None:
        """Stop all ranks here, then leave."""
        self.supervisor.stop(list(self.supervisor.ranks))
        self._leave_when_empty(time.monotonic() + 4.0)

    def _leave_when_empty(self, limit: float) -> None:
        if self.supervisor.num_alive == 0 or time.monotonic() > limit:
            self.loop.stop()
        else:
            self.loop.call_later(0.01, lambda: self._leave_when_empty(limit))


def _count_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine, as the driver lists them; torch isn't asked."""
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0


def visible_gpus() -> list[str]:
    """Return the values for CUDA_VISIBLE_DEVICES of the GPUs here, restricted to those that this process was
    given itself.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [d.strip() for d in given.split(",") if d.strip()]
    return [str(i) for i in range(_count_gpus())]
