"""The relay: the process to which programs of this machine connect when they use another user's mesh.

It has the socket that a host process has, so programs find no difference; what they send goes over one
connection to the controller there, with the key that an invitation has let in, and what comes back goes to
whom it's for. It runs no ranks. It ends with the connection, when the key is void, or when no program has
been there for a while; its programs are told why.

The mesh may be this user's own, on another machine (`HostConfig.is_own`). Then the connection may be lost for
minutes: what is sent meanwhile, on both sides, arrives when it's back (`_wire/resuming`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from contextlib import suppress
from typing import Any

import zmq

from monarch_nb._host.agent.process import BEAT_S
from monarch_nb._host.agent.router import Router
from monarch_nb._host.config import HostConfig
from monarch_nb._host.controller.mesh_name import write_connection
from monarch_nb._host.local_sockets import LocalSockets
from monarch_nb._host.loop import Loop
from monarch_nb._host.road import Road
from monarch_nb._protocol.base import Event, Malformed, decode, encode
from monarch_nb._protocol.claims import ClaimNote, ConnectionNote
from monarch_nb._protocol.events import Beat, Leave, MeshEnding, Notice
from monarch_nb._protocol.programs import Goodbye, Hello
from monarch_nb._protocol.states import ClaimState
from monarch_nb._units import duration
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.claim import Claim
from monarch_nb._wire.connection_events import read_event, send_unless_refused
from monarch_nb._wire.directory import private_directory
from monarch_nb._wire.message import Message
from monarch_nb._wire.pieces import cut, join
from monarch_nb._wire.process import machine_id, start_time
from monarch_nb._wire.resuming import AWAY_S, CONFIRM_BYTES, MAX_KEPT_BYTES, NOTE, Resumable

UNUSED_S = 600.0
"""How long the relay waits without a program before it ends."""
LOST_AFTER_S = 5.0
"""How long a lost connection may take to be restored."""
SILENT_S = 60.0
TOLD_AFTER_S = 2.0
"""How long it's lost before people are told."""
LEAVE_S = 2.0
"""How long the controller may take to answer to a goodbye."""
FLUSH_MS = 500
_HANDSHAKE_MS = 5000
_BIG_BYTES = 1 << 16


class RelayError(Exception):
    """The error of a relay that can't be started; the message says why, in a sentence."""


class Relay:
    """The process that forwards messages between programs of this machine and another user's mesh. Owned by
    the loop thread.

    Args:
        config: `host` (the index that programs here have), `directory`, `controller` (address),
            `controller_key`, `public`, `secret`, `name` and `connection_file` under which programs find it.
    """

    successor: HostConfig | None = None
    """Always None: nothing takes the relay's place."""

    def __init__(self, config: HostConfig) -> None:
        self._config = config
        self._index = config.host
        self._me = address.host_proc(self._index)
        self._directory = config.directory
        self._claim = self._claimed(config.connection_file)
        private_directory(self._directory)
        self.loop = Loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._local = LocalSockets(self.loop, self._directory, self._take_local)
        self._programs: dict[int, int] = {}
        """The pidfd of each program, by proc id."""
        self._router = Router(self._me, self.loop, self._send_local, self._send_remote)
        self._local.listen(self._me)
        self._resumable = Resumable() if config.is_own else None
        self._num_unconfirmed = 0
        self._lost_at: float | None = None
        """When the connection by a road was lost; None: it isn't, or there was none yet."""
        self._is_told = False
        self._link = self._dialled()
        self._monitor = self._link.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        self._road = Road(self.loop, config.road) if config.road else None
        self._heard = self._used = self.loop.clock()
        self._limit_s = AWAY_S if config.is_own else SILENT_S
        self.loop.watch_socket(self._link, self._take_link)
        self.loop.watch_socket(self._monitor, self._on_connection)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self.loop.call_soon_threadsafe(self.shut_down))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._show()
        self._beats()

    @staticmethod
    def _claimed(connection_file: str) -> Claim:
        path = connection_file.removesuffix(".json") + ".claim"
        note = ClaimNote(ClaimState.RUNNING, os.getpid(), "%mesh attach")
        claim = Claim.acquire(path, note.as_json())
        if claim is None:
            raise RelayError("a mesh of that name runs here already: give it another one by --as NAME")
        return claim

    def _dialled(self) -> zmq.Socket[bytes]:
        config, link = self._config, self._context.socket(zmq.DEALER)
        link.setsockopt(zmq.SNDHWM, 0)
        link.setsockopt(zmq.RCVHWM, 0)
        link.setsockopt(zmq.LINGER, FLUSH_MS)
        link.setsockopt(zmq.IDENTITY, b"m%d.%s" % (self._index, secrets.token_hex(8).encode()))
        link.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        link.setsockopt(zmq.IPV6, int("[" in config.controller))
        link.curve_serverkey = config.controller_key.encode()
        link.curve_publickey, link.curve_secretkey = config.public.encode(), config.secret.encode()
        link.connect(config.controller)
        return link

    def _show(self) -> None:
        """Let programs of this user find the mesh."""
        pid = os.getpid()
        content = ConnectionNote(
            self._config.name, pid, self._directory, start_time=start_time(pid), machine=machine_id(),
            wire_version=wire.VERSION, started=time.time(), host=self._index, via=self._config.via,
        )  # fmt: skip
        write_connection(self._config.connection_file, content)

    # --- messages of programs on this machine

    def _take_local(self, message: Message) -> None:
        if message.kind == wire.RELEASE and message.dst == self._me:
            self._router.pool.release(message.ref, message.src)
        elif address.host_of(message.dst) == self._index:
            if message.dst != self._me:
                self._send_local(message.dst, message.frame)
        else:
            self._look_at(message)
            self._router.export(message)

    def _look_at(self, message: Message) -> None:
        """Record which programs come and go."""
        if message.kind != wire.CONTROL:
            return
        if message.name == Hello.wire_name.encode():
            with suppress(Malformed, OSError):
                self._watch(message.src, os.pidfd_open(decode(Hello, message.payload).pid))
        elif message.name == Goodbye.wire_name.encode():
            self._forget(message.src)

    def _watch(self, proc: int, fd: int) -> None:
        self._programs[proc] = fd
        self.loop.watch_file(fd, lambda: self._ended(proc))

    def _ended(self, proc: int) -> None:
        """Send the controller a goodbye for a program that has ended, and drop the program. A killed program
        hasn't sent one itself.
        """
        goodbye = wire.pack(
            wire.CONTROL,
            src=proc,
            dst=address.CONTROLLER,
            name=Goodbye.wire_name.encode(),
            payload=encode(Goodbye()),
        )
        self._send_remote(0, [goodbye])
        self._forget(proc)

    def _forget(self, proc: int) -> None:
        fd = self._programs.pop(proc, -1)
        if fd >= 0:
            self.loop.forget_file(fd)
            os.close(fd)
        self._local.drop_route(proc)
        self._router.forget(proc)
        self._used = self.loop.clock()
        with suppress(OSError):
            os.unlink(address.socket_path(self._directory, proc))

    # --- messages of the mesh

    def _take_link(self) -> None:
        parts = [f.buffer for f in self._link.recv_multipart(copy=False)]
        self._heard = self.loop.clock()
        if self._resumable is None:
            self._limit_s = SILENT_S
        elif bytes(parts[0]) == NOTE:
            parts = parts[1:]
        elif self._resumable.takes(bytes(parts[0])):
            parts = parts[1:]
            self._confirm_in_time(sum(map(len, parts)))
        else:
            return  # it has come before, by an earlier connection
        frames = join(parts)
        frame = bytes(frames[0])
        message = wire.unpack(frame)
        if message.dst != self._me:
            self._router.accept(frame, frames[1:])
        elif message.name == Leave.wire_name.encode():
            self.shut_down()
        elif message.name == Beat.wire_name.encode() and self._resumable is not None:
            self._resume(self._resumable, decode(Beat, message.payload).taken)

    def _resume(self, link: Resumable, num_taken: int) -> None:
        """Send what the controller lacks, if the connection is a new one; forget what it has."""
        for frames in link.resumed(num_taken):
            send_unless_refused(self._link, frames)
        if self._is_told and self._lost_at is not None:
            away = duration(round(self.loop.clock() - self._lost_at))
            self._tell_people(f"the connection to {self._config.via} is back, after {away}")
        self._lost_at, self._is_told = None, False

    def _lost(self, link: Resumable) -> None:
        if link.is_open:
            self._lost_at = lost_at = self.loop.clock()
            self.loop.call_later(TOLD_AFTER_S, lambda: self._tell_of_loss(lost_at))
        link.broken()

    def _tell_of_loss(self, lost_at: float) -> None:
        if self._lost_at != lost_at or self._is_told:
            return  # it's back, or was lost once more
        self._is_told = True
        self._tell_people(
            f"the connection to {self._config.via} is lost; cells go on there, and what they print is shown "
            f"when it's back. It's tried again for {duration(AWAY_S)}"
        )

    def _tell_people(self, text: str) -> None:
        for proc in self._programs:
            self._send_local(proc, self._packed(proc, Notice("", text)))

    def _confirm_in_time(self, num_bytes: int) -> None:
        self._num_unconfirmed += num_bytes
        if self._num_unconfirmed > CONFIRM_BYTES:
            self._beat()

    def _on_connection(self) -> None:
        event, _ = read_event(self._monitor)
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._give_up("lets this program in no more: its key is void")
        elif self._resumable is not None:
            self._lost(self._resumable)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._beat()  # the answer says what the controller has
        elif event == zmq.EVENT_DISCONNECTED:
            self._limit_s = LOST_AFTER_S

    def _beats(self) -> None:
        self.loop.call_later(BEAT_S, self._beats)
        now = self.loop.clock()
        if now - self._heard > self._limit_s:
            self._give_up("can't be reached any more: the connection to its machine has ended")
        elif not self._programs and now - self._used > UNUSED_S:
            self.shut_down()
        else:
            self._beat()

    def _beat(self) -> None:
        self._num_unconfirmed = 0
        self._note(Beat(0 if self._resumable is None else self._resumable.num_taken))

    def _note(self, event: Event) -> None:
        """Tell the controller something that is of this connection only."""
        frame = self._packed(address.CONTROLLER, event)
        send_unless_refused(self._link, [frame] if self._resumable is None else [NOTE, frame])

    def _give_up(self, how: str) -> None:
        for proc in self._programs:
            self._send_local(proc, self._packed(proc, MeshEnding(how)))
        self.shut_down()

    # --- sending

    def _packed(self, dst: int, event: Event) -> bytes:
        return wire.pack(
            wire.EVENT, src=self._me, dst=dst, name=event.wire_name.encode(), payload=encode(event)
        )

    def _send_remote(self, _host: int, frames: list[Any]) -> None:
        if self._resumable is None:
            send_unless_refused(self._link, cut(frames), copy=sum(map(len, frames)) < _BIG_BYTES)
            return
        numbered = self._resumable.send(cut(frames))
        if numbered is not None:
            send_unless_refused(self._link, numbered)
        elif self._resumable.kept_bytes > MAX_KEPT_BYTES:
            self._give_up(f"can't be reached, and more than {MAX_KEPT_BYTES >> 20} MiB wait to be sent")

    def _send_local(self, dst: int, frame: bytes) -> None:
        if self._local.has_route(dst) or self._local.listens(dst):
            self._local.send(dst, frame)

    # --- the end

    def shut_down(self) -> None:
        """Leave, after this round."""
        self.loop.stop()

    def _take_leave(self) -> None:
        """Tell the controller that this key isn't needed any more; wait until it knows: what the road has
        taken in and not passed on yet is lost with it.
        """
        self._note(Leave())
        deadline = time.monotonic() + LEAVE_S
        while self._link.poll(int(1000 * max(0.0, deadline - time.monotonic()))):
            parts = [bytes(f) for f in self._link.recv_multipart()]
            if parts[0] == NOTE and wire.unpack(parts[1]).name == Leave.wire_name.encode():
                return

    def run(self) -> None:
        """Serve until shut down; clean up."""
        try:
            self.loop.run()
            if self._resumable is not None and self._resumable.is_open:
                self._take_leave()
            self._link.disable_monitor()
            self._local.close(FLUSH_MS / 1000)
            for socket in (self._link, self._monitor):
                socket.close(FLUSH_MS)
            self._context.term()
            self._router.pool.close()
        finally:
            if self._road is not None:
                self._road.close()
            with suppress(OSError):
                os.unlink(self._config.connection_file)
            self._claim.release()
            shutil.rmtree(self._directory, ignore_errors=True)
            with suppress(OSError):
                os.rmdir(os.path.dirname(self._directory))
