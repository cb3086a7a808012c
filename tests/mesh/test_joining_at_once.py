"""Hosts that join: many at the same moment, and one whose connection breaks before it's heard of."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from waiting import wait_until

from monarch_nb._client import session as sessions
from monarch_nb._client.session import Session
from monarch_nb._host.config import HostConfig
from monarch_nb._host.starting import start_host_process
from monarch_nb._protocol.base import decode, encode
from monarch_nb._protocol.events import HostJoined, Leave
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.ranks import Ticket, Tickets
from monarch_nb._protocol.states import HostState
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.keys import KeyPair
from monarch_nb._wire.strangers import MAX_STRANGERS
from monarch_nb.job import ProcessJob

T = 60
MANY = 3 * MAX_STRANGERS
JOINED = HostJoined(hostname="simulated", pid=1, machine="simulated", num_cores=1, num_gpus=0)


@pytest.fixture
def session() -> Iterator[Session]:
    job = ProcessJob({"hosts": 1})
    job.state().hosts.initialized.get(T)
    yield sessions.current()
    job.kill()


def test_many_hosts_join_at_the_same_moment(session: Session) -> None:
    """More than the strangers that may be connected at once; they say once that they're there."""
    tickets = session.request(Tickets(MANY))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 2 * MANY)
    controller = session.request(Status()).pid
    try:
        os.kill(controller, signal.SIGSTOP)  # so that it finds them all at once
        for ticket in tickets:
            link = context.socket(zmq.DEALER)
            link.setsockopt(zmq.IDENTITY, b"h%d.%d.00" % (ticket.host, ticket.generation))
            link.curve_serverkey = ticket.controller_key.encode()
            link.curve_publickey, link.curve_secretkey = ticket.public.encode(), ticket.secret.encode()
            link.connect(ticket.controller)
            name, src = HostJoined.wire_name.encode(), address.host_proc(ticket.host)
            link.send(
                wire.pack(wire.EVENT, src=src, dst=address.CONTROLLER, name=name, payload=encode(JOINED))
            )
        os.kill(controller, signal.SIGCONT)
        given = {ticket.host for ticket in tickets}
        heard = (HostState.UP, HostState.LOST)  # they send no heartbeats

        def num_heard() -> int:
            return sum(r.state in heard for r in session.request(Status()).hosts if r.index in given)

        wait_until(lambda: num_heard() == MANY, "all hosts have been heard of", T)
    finally:
        os.kill(controller, signal.SIGCONT)
        context.destroy(0)


def served(context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, bind: str) -> zmq.Socket[bytes]:
    """A controller's socket."""
    link = context.socket(zmq.ROUTER)
    link.setsockopt(zmq.LINGER, 0)
    link.curve_server = True
    link.curve_secretkey, link.curve_publickey = keys.secret.encode(), keys.public.encode()

    def is_bound() -> bool:
        try:
            link.bind(bind)
        except zmq.ZMQError:  # it's in use: ZeroMQ closes a socket in a thread of its own
            return False
        return True

    wait_until(is_bound, "a port that is free")
    return link


def first_event(link: zmq.Socket[bytes]) -> tuple[bytes, HostJoined]:
    """Return who has sent the first message that comes, and the message."""
    assert link.poll(T * 1000), "a host that dials"
    identity, frame = link.recv_multipart()
    message = wire.unpack(frame)
    assert message.name == HostJoined.wire_name.encode()
    return identity, decode(HostJoined, message.payload)


def test_a_host_whose_connection_breaks_says_again_that_it_is_there(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    theirs, its = KeyPair.new(), KeyPair.new()
    link = served(context, theirs, "tcp://127.0.0.1:*")
    endpoint = link.getsockopt_string(zmq.LAST_ENDPOINT)
    ticket = Ticket(3, 0, "gpu-3", endpoint, theirs.public, its.public, its.secret)
    config = HostConfig(3, str(tmp_path / "host"), list(sys.path), warm=False)
    host = start_host_process(config.with_ticket(ticket, str(tmp_path / "host")), os.environ)
    try:
        _, joined = first_event(link)
        link.close()  # nothing was answered
        link = served(context, theirs, endpoint)
        identity, again = first_event(link)
        assert again == joined and joined.pid == host.pid
        to, name = address.host_proc(3), Leave.wire_name.encode()
        link.send_multipart([identity, wire.pack(wire.EVENT, src=address.CONTROLLER, dst=to, name=name)])
        assert host.wait(T) == 0
    finally:
        host.kill()
        host.wait()
        link.close()
        context.destroy(0)
