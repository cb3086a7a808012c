"""A mesh whose hosts have dialled in is given new keys: nothing of theirs is lost, and whoever has only the
old key stays out. Controller, hosts and ranks are real; hosts are frozen where a test needs the middle of it.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch
import zmq
from msgspec import structs
from own_meshes import own_mesh
from processes import wait_for_exit
from waiting import wait_until
from zmq.utils.monitor import recv_monitor_message

from monarch_nb import mesh as meshes
from monarch_nb._client import membership
from monarch_nb._client import session as sessions
from monarch_nb._commands.table import COMMANDS
from monarch_nb._protocol.base import Event, decode, encode
from monarch_nb._protocol.events import (
    Beat,
    DialAnew,
    HostJoined,
    HostLeaving,
    HostLeft,
    LastWord,
    Switch,
    Switched,
)
from monarch_nb._protocol.invitations import Invite
from monarch_nb._protocol.programs import HostRow, Status
from monarch_nb._protocol.ranks import Ticket, Tickets
from monarch_nb._protocol.roles import ListKeys, Rekey, Rekeyed, Role, Share
from monarch_nb._transport.pending import Reply
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.invitation import Invitation
from monarch_nb._wire.keys import KeyPair
from monarch_nb.actor import Actor, endpoint
from monarch_nb.exceptions import MeshStartError, RankTimeout, RequestFailed
from monarch_nb.mesh import Mesh

PRELOAD = "none"
T = 60
PIDFD_GETFD = 438
NUM_LINES = 400
NUM_REKEYS = 4
NUM_FLOATS = 8 << 20


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    """A mesh of two hosts that have dialled in, with one rank each."""
    with own_mesh("rekeyed", {"gpus": 1}, num_hosts=2) as started:
        yield started


def rows_of(mesh: Mesh) -> dict[str, HostRow]:
    """Return the hosts that have dialled in, by their names."""
    return {row.label: row for row in mesh._session.request(Status()).hosts if row.index}


def rekey(mesh: Mesh) -> str:
    return COMMANDS["rekey"].ask_text(mesh)


def is_open(endpoint: str) -> bool:
    where, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((where, int(port))) == 0


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it's frozen")
    try:
        yield
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGCONT)


def asked(mesh: Mesh) -> Reply[Rekeyed]:
    """Ask for new keys; return when the controller has begun, and one host at least hasn't come over."""
    reply = mesh._session.ask(Rekey())
    with pytest.raises(RequestFailed, match="is being given new keys already"):
        mesh._session.request(Rekey())
    return reply


def answer(reply: Reply[Rekeyed]) -> Rekeyed:
    wait_until(lambda: reply.ready, "the answer to new keys")
    return reply.read()


# --- nothing is lost


def test_hosts_come_over_with_the_same_ranks(mesh: Mesh) -> None:
    before, pids = rows_of(mesh), list(mesh.execute(os.getpid).get(T).values())
    text = rekey(mesh)
    assert "hosts that have come over: host0, host1" in text and "lost" not in text
    after = rows_of(mesh)
    for name, row in after.items():
        assert (row.state, row.pid) == ("up", before[name].pid)
        assert row.endpoint != before[name].endpoint
        assert is_open(row.endpoint)
        wait_until(lambda name=name: not is_open(before[name].endpoint), "the old port is closed")
    assert list(mesh.execute(os.getpid).get(T).values()) == pids


def test_from_a_terminal(mesh: Mesh) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "monarch_nb", "rekey", "rekeyed"],
        capture_output=True, text=True, timeout=T, check=False,
    )  # fmt: skip
    assert "hosts that have come over: host0, host1" in done.stdout, done.stderr
    assert not mesh.run("1 + 1", quiet=True).failures


class Counter(Actor):
    """Remembers what it's told, in order."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    @endpoint
    def tell(self, number: int) -> int:
        self.numbers.append(number)
        return number

    @endpoint
    def told(self) -> list[int]:
        return self.numbers

    @endpoint
    def doubled(self, values: torch.Tensor) -> torch.Tensor:
        return 2 * values


def test_calls_and_answers_arrive_once_and_in_order(mesh: Mesh) -> None:
    counter = mesh.spawn("counter", Counter)
    counter.initialized.get(T)
    over = threading.Event()
    answers = []

    def talk() -> None:
        while not over.is_set():
            answers.append(counter.tell.call(len(answers)))
            if len(answers) % 50 == 0:
                answers[-1].get(T)  # not faster than they can be taken

    talker = threading.Thread(target=talk)
    talker.start()
    try:
        for _ in range(NUM_REKEYS):
            values = torch.rand(NUM_FLOATS)
            doubled = counter.doubled.call(values)
            assert "host0, host1" in rekey(mesh)
            for each in doubled.get(T).values():
                assert torch.equal(each, 2 * values)
    finally:
        over.set()
        talker.join(T)
    for number, each in enumerate(answers):
        assert set(each.get(T).values()) == {number}
    for told in counter.told.call().get(T).values():
        assert told == list(range(len(answers)))


def test_a_running_cell_goes_on_and_no_line_is_lost(mesh: Mesh, tmp_path: Path) -> None:
    go = tmp_path / "go"
    running = mesh.cells.submit(
        f"import os, time\nfor line in range({NUM_LINES}):\n    print('line', line)\n"
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.001)\n    line += 1\n"
        "    print('line', line)\n"
        "print('last', line)"
    )
    for _ in range(NUM_REKEYS):
        assert "host0, host1" in rekey(mesh)
    go.touch()
    running.wait()

    def printed() -> list[str]:
        return ["".join(mesh.journal.logs(mesh.select([rank]))) for rank in (0, 1)]

    wait_until(lambda: all("last" in text for text in printed()), "all output")
    for text in printed():
        found = re.search(r"last (\d+)", text)
        assert found is not None
        lines = [int(line) for line in re.findall(r"line (\d+)", text)]
        assert lines == list(range(int(found[1]) + 1))


# --- the old key is void


def refusal(port: str, server_key: str, keys: KeyPair) -> int:
    """Dial a port; return by which event it's refused."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = context.socket(zmq.DEALER)
    link.setsockopt(zmq.LINGER, 0)
    link.curve_serverkey = server_key.encode()
    link.curve_publickey, link.curve_secretkey = keys.public.encode(), keys.secret.encode()
    failed = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    failed |= zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_SUCCEEDED
    monitor = link.get_monitor_socket(failed | zmq.EVENT_DISCONNECTED)
    link.connect(port)
    try:
        event: int = recv_monitor_message(monitor)["event"]
        return event
    finally:
        link.disable_monitor()
        context.destroy(0)


def host_by(mesh: Mesh, invitation: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "monarch_nb", "host", "--join", str(invitation)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def invited(mesh: Mesh, file: Path) -> Invitation:
    text = mesh._session.request(Invite("rekeyed", 1, T, network="127.0.0.0/8")).invitation
    membership.write(str(file), text)
    return Invitation.from_json(text)


def test_old_invitations_are_void_and_new_ones_work(mesh: Mesh, tmp_path: Path) -> None:
    invitation = invited(mesh, tmp_path / "old.join")
    shared = Invitation.from_json(mesh._session.request(Share(Role.OBSERVER, "ada")).invitation)
    found = meshes.attach(membership.join(shared.to_token(), "theirs").name, listens=False)
    text = rekey(mesh)
    assert "disconnected: ada" in text
    assert "hadn't joined and can't any more: host 3" in text
    wait_until(lambda: found._session.transport.lost, "they're out")
    assert "was given new keys" in found._session.transport.lost
    with pytest.raises(MeshStartError, match="can't be attached to"):
        membership.join(shared.to_token(), "again")
    late = host_by(mesh, tmp_path / "old.join")
    assert "cannot reach the mesh" in late.communicate(timeout=T)[1] and late.returncode

    fresh = invited(mesh, tmp_path / "new.join")
    assert fresh.controller_key != invitation.controller_key
    guest = KeyPair(invitation.guest_public, invitation.guest_secret)
    assert refusal(fresh.addresses[0], fresh.controller_key, guest) == zmq.EVENT_HANDSHAKE_FAILED_AUTH
    newest = KeyPair(fresh.guest_public, fresh.guest_secret)
    assert refusal(fresh.addresses[0], fresh.controller_key, newest) == zmq.EVENT_HANDSHAKE_SUCCEEDED
    assert refusal(fresh.addresses[0], invitation.controller_key, newest) != zmq.EVENT_HANDSHAKE_SUCCEEDED

    host = host_by(mesh, tmp_path / "new.join")
    wait_until(lambda: [r.state for r in rows_of(mesh).values()].count("up") == 3, "it has joined")
    assert rekey(mesh).count("host") >= 3  # and it comes over as the others do
    host.terminate()
    host.communicate(timeout=T)
    anew = Invitation.from_json(mesh._session.request(Share(Role.OBSERVER, "eve")).invitation)
    assert meshes.attach(membership.join(anew.to_token(), "eves").name, listens=False).status().ranks
    COMMANDS["unshare"].ask_text(mesh, key="eve")


def test_without_another_port_nothing_changes(mesh: Mesh) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    one_port = Invite("rekeyed", 1, T, network="127.0.0.0/8", ports=[port, port])
    invitation = Invitation.from_json(mesh._session.request(one_port).invitation)
    mesh._session.request(Share(Role.OBSERVER, "ada"))
    before = rows_of(mesh)
    with pytest.raises(RequestFailed, match=f"ports {port}-{port} of this machine are all taken; name more"):
        rekey(mesh)
    assert rows_of(mesh) == before and mesh._session.request(ListKeys())[0].key == "ada"
    guest = KeyPair(invitation.guest_public, invitation.guest_secret)
    for address_of_it in invitation.addresses:
        admitted = refusal(address_of_it, invitation.controller_key, guest)
        assert admitted == zmq.EVENT_HANDSHAKE_SUCCEEDED
    assert len(set(mesh.execute(os.getpid).get(T).values())) == 2


# --- in the middle of it


def test_a_frozen_host_comes_over_when_it_wakes_up_and_a_second_request_waits_its_turn(mesh: Mesh) -> None:
    rows, pids = rows_of(mesh), list(mesh.execute(os.getpid).get(T).values())
    with frozen(rows["host1"].pid):
        reply = asked(mesh)
        wait_until(lambda: is_open(rows_of(mesh)["host1"].endpoint), "the new port")
        assert is_open(rows["host1"].endpoint)  # it's needed still
    assert answer(reply).moved == ["host0", "host1"]
    assert list(mesh.execute(os.getpid).get(T).values()) == pids
    assert "host0, host1" in rekey(mesh)


def test_a_host_that_is_killed_meanwhile_is_named_and_healed(mesh: Mesh) -> None:
    rows, pids = rows_of(mesh), list(mesh.execute(os.getpid).get(T).values())
    with frozen(rows["host1"].pid):
        reply = asked(mesh)
        os.kill(rows["host1"].pid, signal.SIGKILL)
    found = answer(reply)
    assert (found.moved, found.lost) == (["host0"], ["host1"])
    wait_until(lambda: not is_open(rows["host1"].endpoint), "the old port is closed")
    mesh.heal()
    after = list(mesh.execute(os.getpid).get(T).values())
    assert after[0] == pids[0] and after[1] != pids[1]
    assert len({row.endpoint for row in rows_of(mesh).values()}) == 1
    assert "host0, host1" in rekey(mesh)


def test_a_host_that_sleeps_for_too_long_is_lost_and_ends_when_it_wakes_up(mesh: Mesh) -> None:
    pid = rows_of(mesh)["host1"].pid
    with frozen(pid):
        assert "lost meanwhile: host1" in rekey(mesh)
    assert wait_for_exit(pid)
    mesh.heal()
    assert len(set(mesh.execute(os.getpid).get(T).values())) == 2


def cut_connections(row: HostRow) -> None:
    """End the connection of a host to the controller, as an interruption of the network does."""
    port = int(row.endpoint.rpartition(":")[2])
    process = os.pidfd_open(row.pid)
    for each in psutil.Process(row.pid).net_connections("tcp"):
        if each.raddr and each.raddr.port == port:
            found = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, each.fd, 0)
            assert found >= 0, os.strerror(ctypes.get_errno())
            with socket.socket(fileno=found) as theirs:
                theirs.shutdown(socket.SHUT_RDWR)
    os.close(process)


def test_afterwards_a_lost_connection_is_restored_and_a_lost_host_is_noticed(mesh: Mesh) -> None:
    pids = list(mesh.execute(os.getpid).get(T).values())
    rekey(mesh)
    rows = rows_of(mesh)
    cut_connections(rows["host0"])

    def answers() -> list[int]:
        try:
            return list(mesh.execute(os.getpid).get(1.0).values())
        except RankTimeout:
            return []  # the call was lost with the connection

    assert wait_until(answers, "an answer by another connection") == pids
    os.kill(rows["host0"].pid, signal.SIGKILL)
    assert "is gone: its connection has ended" in str(mesh.execute(signal.pause).exception(T))
    with frozen(rows["host1"].pid):
        wait_until(lambda: rows_of(mesh)["host1"].state == "lost", "it's lost")
    assert wait_for_exit(rows["host1"].pid)
    mesh.heal()
    assert not set(mesh.execute(os.getpid).get(T).values()) & set(pids)


def test_hosts_end_when_the_controller_is_killed_meanwhile() -> None:
    before = sessions._current
    mesh = meshes.start("doomed", {"gpus": 1}, num_hosts=2)
    pids = [row.pid for row in rows_of(mesh).values()]
    with frozen(pids[1]):
        asked(mesh)
        controller = mesh._session.request(Status()).pid
        os.kill(controller, signal.SIGKILL)
    assert all(wait_for_exit(pid) for pid in (controller, *pids))
    sessions._current = before


# --- a host that doesn't reach the new port


class Slow:
    """A host that has joined and sends heartbeats, and does nothing else until a test wants it."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.old = self.dialled(ticket.controller, ticket.controller_key, b"00")
        self.say(self.old, JOINED)

    def dialled(self, port: str, key: str, tag: bytes) -> zmq.Socket[bytes]:
        ticket, link = self._ticket, self._context.socket(zmq.DEALER)
        link.setsockopt(zmq.LINGER, 0)
        link.setsockopt(zmq.IDENTITY, b"h%d.%d.%s" % (ticket.host, ticket.generation, tag))
        link.curve_serverkey = key.encode()
        link.curve_publickey, link.curve_secretkey = ticket.public.encode(), ticket.secret.encode()
        link.connect(port)
        return link

    def lose_connection(self) -> None:
        """Dial the old port again, as after an interruption; what was on its way here is lost."""
        self.old.close()
        self.old = self.dialled(self._ticket.controller, self._ticket.controller_key, b"00")
        self.say(self.old, Beat())

    def dial_anew(self) -> zmq.Socket[bytes]:
        """Dial where the controller says, and say something there."""
        dial = decode(DialAnew, self.hears(self.old, DialAnew).payload)
        link = self.dialled(f"tcp://127.0.0.1:{dial.port}", dial.controller_key, b"01")
        self.say(link, Beat())
        return link

    def say(self, link: zmq.Socket[bytes], event: Event) -> None:
        src, name = address.host_proc(self._ticket.host), event.wire_name.encode()
        link.send(wire.pack(wire.EVENT, src=src, dst=address.CONTROLLER, name=name, payload=encode(event)))

    def hears(self, link: zmq.Socket[bytes], event: type[Event]) -> wire.Message:
        """Return the first such event that comes by a connection."""

        def found() -> wire.Message | None:
            self.say(self.old, Beat())
            message = wire.unpack(link.recv()) if link.poll(100) else None
            return message if message and message.name == event.wire_name.encode() else None

        return wait_until(found, event.wire_name)

    def close(self) -> None:
        self._context.destroy(0)


JOINED = HostJoined(hostname="slow", pid=1, machine="slow", num_cores=1, num_gpus=0)


@contextmanager
def slow_host(mesh: Mesh) -> Iterator[tuple[Slow, Ticket]]:
    ticket = mesh._session.request(Tickets(1, ["slow"]))[0]
    slow = Slow(ticket)
    try:
        slow.hears(slow.old, Beat)
        yield slow, ticket
    finally:
        slow.close()


def test_what_is_lost_with_a_broken_connection_is_told_again(mesh: Mesh) -> None:
    with slow_host(mesh) as (slow, ticket):
        reply = asked(mesh)
        slow.lose_connection()
        new = slow.dial_anew()
        for _ in range(2):
            slow.lose_connection()
            slow.hears(slow.old, Switch)
        slow.say(slow.old, LastWord())
        slow.hears(new, Switched)
        assert answer(reply).moved == ["host0", "host1", "slow"]
        wait_until(lambda: not is_open(ticket.controller), "the old port is closed")


def test_a_host_that_was_about_to_join_by_the_old_key_joins_and_comes_over(mesh: Mesh) -> None:
    ticket = mesh._session.request(Tickets(1, ["slow"]))[0]
    reply = asked(mesh)
    slow = Slow(ticket)
    try:
        new = slow.dial_anew()
        slow.hears(slow.old, Switch)
        slow.say(slow.old, LastWord())
        slow.hears(new, Switched)
        assert answer(reply) == Rekeyed([], ["host0", "host1", "slow"], [], [])
    finally:
        slow.close()


def test_a_host_that_does_not_reach_the_new_port_keeps_the_old_one_alone(mesh: Mesh) -> None:
    with slow_host(mesh) as (slow, ticket):
        never = mesh._session.request(Tickets(1, ["never"]))[0]
        reply = asked(mesh)

        def is_answered() -> bool:
            slow.say(slow.old, Beat())
            return reply.ready

        wait_until(is_answered, "the answer")
        with pytest.raises(RequestFailed, match=r"reached its new port within 20 s: slow\..* A firewall"):
            reply.read()
        with pytest.raises(RequestFailed, match="still use the last ones: slow"):
            mesh._session.request(Rekey())
        assert is_open(ticket.controller) and rows_of(mesh)["slow"].state == "up"
        assert rows_of(mesh)["never"].state == "stopped"
        refused = refusal(ticket.controller, never.controller_key, KeyPair(never.public, never.secret))
        assert refused == zmq.EVENT_HANDSHAKE_FAILED_AUTH

        new = slow.dial_anew()
        slow.hears(slow.old, Switch)
        slow.say(new, structs.replace(JOINED, hostname="after"))
        slow.say(slow.old, structs.replace(JOINED, hostname="before"))
        wait_until(lambda: rows_of(mesh)["slow"].hostname == "before", "the old connection is read first")
        slow.say(slow.old, LastWord())
        wait_until(lambda: rows_of(mesh)["slow"].hostname == "after", "the new one counts")
        slow.hears(new, Switched)
        slow.say(slow.old, structs.replace(JOINED, hostname="too late"))
        wait_until(lambda: not is_open(ticket.controller), "the old port is closed")
        assert rows_of(mesh)["slow"].hostname == "after"
        slow.say(new, HostLeaving())
        slow.say(new, HostLeft())
        wait_until(lambda: rows_of(mesh)["slow"].state == "stopped", "it has left")
        assert "host0, host1" in rekey(mesh)
