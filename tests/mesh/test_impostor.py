"""A host process that has a key of its own, and speaks as another host: nothing of what it says counts,
and it gets nothing of the other's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from processes import wait_for_exit
from waiting import wait_until

import monarch_nb
from monarch_nb._host import launcher
from monarch_nb._protocol.base import Event, encode
from monarch_nb._protocol.events import EndsHere, HostJoined, HostLeaving, Printed, RanksPrinted
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.invitations import Invite, Withdraw
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.ranks import Ticket, Tickets
from monarch_nb._protocol.states import HostState
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.invitation import Invitation
from monarch_nb._wire.marks import TEXT, Piece
from monarch_nb.mesh import Mesh

T = 60
NAME = "impostor"
EVIL = HostJoined(hostname="evil", pid=1, machine="evil", num_cores=1, num_gpus=0)
HONEST = HostJoined(hostname="honest", pid=1, machine="evil", num_cores=1, num_gpus=0)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("impostor") / "host.log"


@pytest.fixture(scope="module")
def mesh(log: Path) -> Iterator[Mesh]:
    """A mesh whose ranks are on a host that has dialled in."""
    os.environ["MONARCH_NB_HOST_LOG"] = str(log)
    try:
        started = monarch_nb.start(NAME, {"gpus": 1}, num_hosts=1)
    finally:
        del os.environ["MONARCH_NB_HOST_LOG"]
    yield started
    started.stop().get(T)


class Impostor:
    """Has the ticket of a place that the mesh has given out, and dials in with it by whatever identity."""

    def __init__(self, ticket: Ticket, identity: bytes) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        link = self.link = self.context.socket(zmq.DEALER)
        link.setsockopt(zmq.LINGER, 0)
        link.setsockopt(zmq.IDENTITY, identity)
        link.curve_serverkey = ticket.controller_key.encode()
        link.curve_publickey, link.curve_secretkey = ticket.public.encode(), ticket.secret.encode()
        link.connect(ticket.controller)

    def say(self, host: int, event: Event) -> None:
        """Say something in the name of a host."""
        frame = wire.pack(
            wire.EVENT,
            src=address.host_proc(host),
            dst=address.CONTROLLER,
            name=event.wire_name.encode(),
            payload=encode(event),
        )
        self.link.send(frame)

    def close(self) -> None:
        self.context.destroy(0)


def hosts_of(mesh: Mesh) -> dict[int, str]:
    return {host.index: host.hostname for host in mesh.status().hosts}


def test_a_host_cannot_have_the_place_of_another(mesh: Mesh, log: Path) -> None:
    ticket = mesh._session.request(Tickets(1))[0]
    other = max(set(hosts_of(mesh)) - {0, ticket.host})
    impostor = Impostor(ticket, b"h%d.0.00" % other)
    try:
        impostor.say(other, EVIL)
        wait_until(lambda: f"in the name of host {other}" in log.read_text(), "the controller has heard it")
        assert hosts_of(mesh)[other] != "evil"
        assert list(mesh.execute(os.getpid).get(T).values())  # what goes to that host goes there
        assert not impostor.link.poll(0)
    finally:
        impostor.close()


def test_a_host_cannot_speak_for_processes_of_another(mesh: Mesh, log: Path) -> None:
    ticket = mesh._session.request(Tickets(1))[0]
    mine = ticket.host
    other = max(set(hosts_of(mesh)) - {0, mine})
    impostor = Impostor(ticket, b"h%d.0.00" % mine)
    try:
        impostor.say(other, EVIL)
        impostor.say(mine, HONEST)
        wait_until(lambda: hosts_of(mesh).get(mine) == "honest", "what it says of itself counts")
        assert hosts_of(mesh)[other] not in ("evil", "honest")
    finally:
        impostor.close()


def test_a_host_cannot_end_ranks_of_another_or_print_in_their_name(mesh: Mesh) -> None:
    ticket = mesh._session.request(Tickets(1))[0]
    mine, (proc,) = ticket.host, mesh._placement.procs
    impostor = Impostor(ticket, b"h%d.0.00" % mine)
    try:
        impostor.say(mine, HONEST)
        impostor.say(mine, EndsHere((RankExit(proc, NAME, 0, "evil", 1),)))
        impostor.say(mine, RanksPrinted((Printed(proc, 0, Piece(TEXT, 0, "stdout", b"forged\n")),)))
        impostor.say(mine, HostLeaving())
        wait_until(
            lambda: mesh._session.request(Status()).hosts[mine].state != HostState.UP, "all has been heard"
        )
        assert mesh.execute(os.getpid).get(T), "the rank lives"
        assert "forged" not in "".join(mesh.journal.logs((0,)))
    finally:
        impostor.close()


@pytest.mark.parametrize(
    "identity",
    [
        b"nonsense",
        b"h",
        b"h1",
        b"h1.0",
        b"h1.x.00",
        b"h99999999999999.0.00",
        b"h0.0.00",
        bytes(range(1, 200)),
    ],
)
def test_an_identity_that_is_none_harms_nothing(mesh: Mesh, identity: bytes) -> None:
    ticket = mesh._session.request(Tickets(1))[0]
    impostor = Impostor(ticket, identity)
    honest = Impostor(ticket, b"h%d.0.00" % ticket.host)
    try:
        impostor.say(0, EVIL)
        impostor.link.send_multipart([b"", b"x", b"\xff" * 100])
        honest.say(ticket.host, HONEST)
        wait_until(lambda: hosts_of(mesh).get(ticket.host) == "honest", "the controller goes on")
    finally:
        impostor.close()
        honest.close()


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore this process' signal handlers: a launcher keeps its own until it ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("told", [False, True], ids=["by itself", "told to end"])
def test_a_host_whose_place_was_given_up_ends(mesh: Mesh, handlers: None, told: bool) -> None:
    """As when a mesh begins with fewer hosts than could have come, while one more is on its way."""
    invited = mesh._session.request(Invite(NAME, 1, T, network="127.0.0.0/8"))
    place = launcher.knock(Invitation.from_json(invited.invitation), "late", None)
    mesh._session.request(Withdraw(invited.guest))
    process = launcher._start(place, detach=True)
    if told:
        process.send_signal(signal.SIGTERM)
    assert process.wait(T) == 0 and wait_for_exit(process.pid)
