"""The controller's link to other hosts: admission, messages, and detection of hosts that are silent.

A host that is given up isn't let in again: its ranks count as dead, and another may have its place. A place
has a generation, which is part of the identity that a host process dials in with. The identity is only a
claim: a message counts if it came by a connection with the key that was given out for that place, and if it
speaks in the name of that host's processes. The identity ends in random bytes that no other host knows, so
nobody can take over the route of messages to it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import zmq

from monarch_nb._host.agent.process import BEAT_S, LOST_AFTER_S
from monarch_nb._host.config import HostConfig
from monarch_nb._host.controller.listening import Listening
from monarch_nb._host.controller.registry import Host
from monarch_nb._host.controller.sending import Sends
from monarch_nb._host.controller.switch_state import Heard
from monarch_nb._host.controller.switching import BOUND, Outcome, Switching
from monarch_nb._host.request import RequestError
from monarch_nb._host.starting import PROCESS_JOB, start_host_process
from monarch_nb._protocol.base import Event, encode
from monarch_nb._protocol.events import Beat, HostJoined, Leave, TakePlace
from monarch_nb._protocol.ranks import Ticket
from monarch_nb._protocol.states import HostState, ProcState
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.keys import Gatekeeper, KeyPair, key_of
from monarch_nb._wire.pieces import cut, join
from monarch_nb._wire.strangers import Peer, Strangers, end_connection, peer_of

if TYPE_CHECKING:
    from monarch_nb._host.controller.members import Members
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.loop import Loop

_BIG_BYTES = 1 << 16
BACK_S = BEAT_S + 0.2
"""How long a host whose connection has ended may take to be heard on another one: it sends heartbeats
meanwhile.
"""
STILL_READ_S = 0.15
Taker = Callable[[list[zmq.Frame]], None]
_IDENTITY = re.compile(rb"h(\d{1,9})\.(\d{1,9})\.[0-9a-f]+")


class Parts(Sends, Protocol):
    """The parts of a controller that this module uses."""

    config: HostConfig
    context: zmq.Context[zmq.Socket[bytes]]
    directory: str
    loop: Loop
    me: int
    members: Members
    name: str
    registry: Registry

    def receive_remote(self, frames: Sequence[Any]) -> None:
        """Handle a message of another host."""
        ...


def _claimed(identity: bytes) -> tuple[int, int]:
    """Return the place and the generation that an identity claims; place 0, which can't be claimed, if it
    isn't an identity of a host.

    >>> _claimed(b"h3.1.9f86d081"), _claimed(b"nonsense")
    ((3, 1), (0, 0))
    """
    found = _IDENTITY.fullmatch(identity)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _speaks_for_itself(parts: Sequence[Any], index: int) -> bool:
    """Say whether a message comes from processes of that host."""
    try:
        return all(address.host_of(src) == index for src in wire.sources(parts[0]))
    except wire.WireError:
        return False


class HostLink:
    """The controller's side of the connections to other hosts: a ROUTER to their DEALERs, over tcp with
    CURVE. Owned by the loop thread.

    Args:
        on_lost: called with a host that is given up.
    """

    def __init__(self, controller: Parts, on_lost: Callable[[Host], None]) -> None:
        self._controller = controller
        self._on_lost = on_lost
        self._socket: zmq.Socket[bytes] | None = None
        self._gatekeeper: Gatekeeper | None = None
        self._strangers: Strangers | None = None
        self._listening: Listening | None = None
        self.switching = Switching(controller, self)
        self._identities: dict[int, bytes] = {}
        self._connections: dict[int, int] = {}
        """The host that spoke last on a connection, by descriptor."""
        self._takers: dict[str, Taker] = {}
        """Receivers of messages on connections that aren't hosts', by their keys."""
        self._members: dict[int, tuple[bytes, int, Peer | None]] = {}
        """Identity, descriptor and address of the connection of each member, by its index."""
        self._heard: dict[int, float] = {}
        """Time of the last message from each host, by the loop's clock."""
        self._directories: list[str] = []
        """Directories of host processes that this one has started: they end with it, without time to clean
        up.
        """

    # --- admission of hosts

    def ticket(self, host: Host, bind: str) -> Ticket:
        """Return a ticket with which a host process dials in and takes a place; the last ticket for the place
        becomes void.
        """
        endpoint = self.listen_on(bind)
        assert self._gatekeeper is not None
        keys = KeyPair.new()
        self._gatekeeper.allowed.discard(host.public_key)
        self._gatekeeper.allowed.add(keys.public)
        host.public_key, host.endpoint = keys.public, endpoint
        return Ticket(
            host.index, host.generation, host.label, endpoint, self.public_key, keys.public, keys.secret
        )

    def listen_on(self, bind: str, ports: Sequence[int] = ()) -> str:
        """Listen for other hosts at `bind`, unless this process does already; return the address to dial.

        Args:
            ports: first and last port that may be used instead, when there are new keys; empty: any.
        """
        if self._listening is None:
            self._open()
        assert self._listening is not None
        return self._listening.on(bind, ports)

    def rekey(self, done: Callable[[Outcome], None]) -> None:
        """Replace the controller's key and ports: what was given out before is void. Hosts that have joined
        come over; then `done` is called, and the old ports are closed.

        Raises:
            RequestError: if the last keys are in use still, or there's no port; nothing has changed then.
        """
        if self._listening is None:
            done(Outcome())
            return
        if self.switching.is_busy:
            left = ", ".join(self.switching.left()) or "none"
            raise RequestError(
                f"mesh {self._controller.name!r} is being given new keys already; hosts that still use the "
                f"last ones: {left}. Again once they have come over, or have gone"
            )
        moved = self._listening.renew()
        hosts = [host for host in self._controller.registry.hosts.values() if host.index]
        for host in hosts:
            host.endpoint = moved(host.endpoint)
        bound = [host for host in hosts if host.state in BOUND]
        self.switching.bring_over(
            {h.index: b"" if h.state == HostState.EXPECTED else self._identities[h.index] for h in bound},
            {h.index: int(h.endpoint.rpartition(":")[2] or 0) for h in bound},
            [host for host in bound if not host.public_key],
            done,
        )

    @property
    def public_key(self) -> str:
        """The controller's public key; it exists once the controller listens."""
        assert self._listening is not None
        return self._listening.keys.public

    def close_old(self) -> None:
        """Listen no longer with the last key."""
        if self._listening is not None:
            self._listening.close_old()

    def let_in(self, key: str, taker: Taker | None = None) -> None:
        """Admit the holder of a key; `taker` receives its messages, if it isn't a host."""
        assert self._gatekeeper is not None
        self._gatekeeper.allowed.add(key)
        if taker is not None:
            self._takers[key] = taker

    def keep_out(self, key: str) -> None:
        """Revoke a key's admission; later messages on its connection are dropped."""
        assert self._gatekeeper is not None
        self._gatekeeper.allowed.discard(key)
        self._takers.pop(key, None)

    def admit(self, host: Host, public_key: str, endpoint: str) -> None:
        """Give a place to the host process that has this key, and connects to `endpoint`."""
        assert self._listening is not None
        self.keep_out(host.public_key)
        host.public_key, host.endpoint = public_key, self._listening.comes_by(endpoint)
        self.let_in(public_key)

    def give_up(self, host: Host) -> None:
        """Give up an expected host."""
        self.keep_out(host.public_key)
        host.state, host.backlog = HostState.STOPPED, []
        self._on_lost(host)

    def _open(self) -> None:
        controller = self._controller
        self._gatekeeper = Gatekeeper(controller.context)
        controller.loop.watch_socket(self._gatekeeper.socket, self._gatekeeper.answer)
        link = self._socket = controller.context.socket(zmq.ROUTER)
        link.setsockopt(zmq.SNDHWM, 0)
        link.setsockopt(zmq.RCVHWM, 0)
        link.setsockopt(zmq.LINGER, 500)
        link.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._strangers = Strangers(controller.context, link, self._connection_ended, self._num_expected)
        controller.loop.watch_socket(self._strangers.monitor, self._strangers.read_event)
        link.curve_server = True
        self._listening = Listening(link)
        controller.loop.watch_socket(link, self._take_frames)
        controller.loop.call_later(BEAT_S, self._beats)

    def _num_expected(self) -> int:
        """Return how many hosts are about to dial."""
        return sum(h.state == HostState.EXPECTED for h in self._controller.registry.hosts.values())

    # --- messages

    def _take_frames(self) -> None:
        assert self._socket is not None and self._strangers is not None
        frames = self._socket.recv_multipart(copy=False)
        self._strangers.knows(frames[0])
        key = key_of(frames[0])
        taker = self._takers.get(key)
        if taker is not None:
            taker(frames)
            return
        identity = bytes(frames[0].buffer)
        index, generation = _claimed(identity)
        host = self._controller.registry.hosts.get(index)
        if host is None or index == 0:  # the controller's own place can't be taken
            return
        if generation != host.generation or host.state in (HostState.LOST, HostState.STOPPED):
            self._send_away(identity, index)
            return
        parts = join([f.buffer for f in frames[1:]])
        if key != host.public_key or not _speaks_for_itself(parts, index):
            self._refuse(frames[0], index)
            return
        fd = int(frames[0].get(zmq.SRCFD))
        heard = self.switching.hears(host, identity, fd, parts)
        if heard is Heard.DROP:
            return
        self._identities[index] = self.switching.route(host, identity)
        self._connections[fd] = index
        self._heard[index] = self._controller.loop.clock()
        if heard is Heard.TAKE:
            self._controller.receive_remote(parts)

    def forget_connection(self, fd: int) -> None:
        """Draw no conclusion from the end of a connection: its host has another one."""
        self._connections.pop(fd, None)

    def _connection_ended(self, fd: int) -> None:
        """Find out whether a host whose connection has ended is lost. A host that only lost its connection is
        back at once, and sends heartbeats on a new one; a host whose process has ended isn't. Messages sent
        before may still be read.
        """
        index = self._connections.pop(fd, None)
        if index is not None and index >= address.FIRST_MEMBER:
            self._member_gone(index, fd)
            return
        host = None if index is None else self._controller.registry.hosts.get(index)
        if host is None or host.state != HostState.UP:
            return
        generation, since = host.generation, self._controller.loop.clock() + STILL_READ_S

        def judge() -> None:
            if (host.state, host.generation) != (HostState.UP, generation):
                return
            if self._heard.get(host.index, 0.0) <= since:
                host.state, host.why_lost = HostState.LOST, "is gone: its connection has ended"
                self._on_lost(host)

        self._controller.loop.call_later(BACK_S, judge)

    def _refuse(self, frame: zmq.Frame, index: int) -> None:
        """Log a message in which the holder of a host's key claims to be another host; the message is
        ignored.
        """
        by = frame.get("Peer-Address")
        print(
            (
                f"monarch_nb: a message in the name of host {index} came from {by}, which isn't that "
                "host: ignored"
            ),
            file=sys.stderr,
        )

    def answer(self, frame: zmq.Frame, text: bytes) -> None:
        """Answer the sender of a frame that isn't a host."""
        assert self._socket is not None
        self._socket.send_multipart([bytes(frame.buffer), text])

    # --- members

    def comes_by(self, index: int, frame: zmq.Frame) -> bool:
        """Record the connection on which a member's frame has arrived: messages to the member use it. Return
        whether it's another one than before.
        """
        identity, fd = bytes(frame.buffer), int(frame.get(zmq.SRCFD))
        if self._members.get(index, (b"", -1))[:2] == (identity, fd):
            return False
        self._members[index] = identity, fd, peer_of(fd)
        self._connections[fd] = index
        return True

    def cut(self, index: int) -> None:
        """End a member's connection."""
        _, fd, peer = self._members.pop(index, (b"", -1, None))
        if peer is not None:
            end_connection(fd, peer)

    def _member_gone(self, index: int, fd: int) -> None:
        if self._members.get(index, (b"", -1))[1] != fd:
            return  # the host is back already
        self._controller.members.connection_breaks(index)

        def judge() -> None:
            if self._members.get(index, (b"", -1))[1] == fd:
                del self._members[index]
                self._controller.members.connection_ended(index)

        self._controller.loop.call_later(BACK_S, judge)

    def _send_away(self, identity: bytes, index: int) -> None:
        """Tell a host process that has lost its place to end: its ranks count as dead."""
        self.send_by(identity, index, Leave())

    def send_by(self, identity: bytes, index: int, event: Event) -> None:
        """Send an event to a host process by one of its connections."""
        assert self._socket is not None
        frame = wire.pack(
            wire.EVENT,
            src=self._controller.me,
            dst=address.host_proc(index),
            name=event.wire_name.encode(),
            payload=encode(event),
        )
        self._socket.send_multipart([identity, frame])

    def send(self, index: int, frames: list[Any]) -> None:
        """Send frames to a host; those to a host that is gone are dropped, those to an expected one are
        kept.
        """
        host = self._controller.registry.hosts.get(index)
        if host is None:
            outgoing = self._controller.members.outgoing(index, frames)
            if outgoing is not None:
                self.send_to_member(index, outgoing)
            return
        if host.state in (HostState.LOST, HostState.STOPPED) or self._socket is None:
            return
        if host.state == HostState.EXPECTED:
            host.backlog.append([bytes(f) for f in frames])
            return
        self._socket.send_multipart(
            [self._identities[index], *cut(frames)], copy=sum(map(len, frames)) < _BIG_BYTES
        )

    def send_to_member(self, index: int, frames: Sequence[Any]) -> None:
        """Send frames to a member as they are, if it's connected."""
        found = self._members.get(index)
        if found is not None and self._socket is not None:
            self._socket.send_multipart([found[0], *frames])

    def has_joined(self, index: int, joined: HostJoined) -> None:
        """Record that a host process has dialled in, and send it the kept messages."""
        host = self._controller.registry.hosts[index]
        host.hostname, host.pid, host.machine = joined.hostname, joined.pid, joined.machine
        host.num_cores, host.num_gpus = joined.num_cores, joined.num_gpus
        host.state, host.last_beat = HostState.UP, self._controller.loop.clock()
        backlog, host.backlog = host.backlog, []
        for frames in backlog:
            self.send(index, frames)

    def leaves(self, index: int) -> None:
        """Record that a host process is about to end on purpose."""
        host = self._controller.registry.hosts.get(index)
        if host is not None and host.state == HostState.UP:
            host.state, host.last_beat = HostState.LEAVING, self._controller.loop.clock()

    def has_left(self, index: int) -> None:
        """Record a leaving host as stopped: its process has sent its last message."""
        host = self._controller.registry.hosts.get(index)
        if host is not None and host.state == HostState.LEAVING:
            host.state = HostState.STOPPED
            self._on_lost(host)

    # --- heartbeats

    def remote_hosts(self) -> list[Host]:
        """Return the other hosts that are up."""
        return [h for h in self._controller.registry.hosts.values() if h.index and h.state == HostState.UP]

    def _beats(self) -> None:
        self._controller.loop.call_later(
            BEAT_S, self._beats
        )  # first: whatever fails below, the heartbeat continues
        now = self._controller.loop.clock()
        self._controller.members.cut_silent()
        self.switching.beat()
        for host in self._controller.registry.hosts.values():
            if host.state == HostState.LEAVING and now - host.last_beat > LOST_AFTER_S:
                host.state = HostState.STOPPED
                self._on_lost(host)  # ranks of that host whose end wasn't reported
        for host in self.remote_hosts():
            if now - host.last_beat > LOST_AFTER_S:
                host.state, host.why_lost = HostState.LOST, f"has not been heard of for {LOST_AFTER_S:g} s"
                self._on_lost(host)
            else:
                self._controller.event(address.host_proc(host.index), Beat())

    # --- replacing a host

    def replace(self, host: Host) -> str:
        """Find another host process for a lost host's place: a spare, or a new one; return why there is none,
        or an empty text.
        """
        spare = self._spare()
        if spare is None and host.kind != PROCESS_JOB and host.state == HostState.EXPECTED:
            return ""  # a launcher in its place has knocked, and its host process is about to join
        if spare is None and host.kind != PROCESS_JOB:
            return (
                f"host {host.label or host.index} is lost and there is no spare; start the mesh with "
                "--spares, or anew"
            )
        host.expect_successor()
        # the address by which the host can reach the controller
        ticket = self.ticket(host, (spare or host).endpoint)
        if spare is None:
            self.start(ticket, host.env)
        else:
            spare.state = HostState.STOPPED
            self.send_by(self._identities[spare.index], spare.index, TakePlace(ticket))
        return ""

    def _spare(self) -> Host | None:
        used = {
            address.host_of(p.proc)
            for p in self._controller.registry.procs.values()
            if p.state != ProcState.STOPPED
        }
        return next((h for h in self.remote_hosts() if h.index not in used), None)

    def start(self, ticket: Ticket, env: Mapping[str, str]) -> None:
        """Start a host process on this machine; its start is reported when it joins."""
        controller = self._controller
        directory = f"{os.path.dirname(controller.directory)}/h{ticket.host}.{ticket.generation}"
        self._directories.append(directory)
        ours = controller.config
        config = HostConfig(ticket.host, directory, ours.sys_path, ours.log).with_ticket(ticket, directory)
        process = start_host_process(config, {**os.environ, **env})
        process.returncode = 0  # this process' child; it's reaped with the orphans of ranks

    # --- the end

    def close(self) -> None:
        """Close the sockets; processes started here are dead by now."""
        if self._socket is not None and self._gatekeeper is not None and self._strangers is not None:
            self._strangers.close()
            self._socket.close(500)
            self._gatekeeper.close()
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)
