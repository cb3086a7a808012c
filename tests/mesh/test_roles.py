"""A mesh that is shared: an observer's program tries everything, an operator's runs cells, keys are revoked
and expire, nonsense comes by the port. Relay, controller and ranks are real; the others' programs are this
one, with connections of their own by keys of their own.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from random import Random

import psutil
import pytest
import zmq
from own_meshes import own_mesh
from waiting import wait_until

from monarch_nb import mesh as meshes
from monarch_nb._client import membership
from monarch_nb._commands.table import COMMANDS
from monarch_nb._host import launcher
from monarch_nb._host.controller.permissions import NEEDS
from monarch_nb._protocol.invitations import Invite, Invited, Withdraw
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.roles import AuditRow, GetAudit, KeyRow, ListKeys, Role, Share, Unshare
from monarch_nb._transport.pending import Reply
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.codec import Encoded
from monarch_nb._wire.invitation import Admission, Invitation, Knock
from monarch_nb._wire.keys import KeyPair
from monarch_nb.exceptions import (
    ActorError,
    MeshEnded,
    MeshError,
    MeshStartError,
    MeshUsageError,
    NameTaken,
    RequestFailed,
)
from monarch_nb.mesh import Mesh

T = 60
NAME = "shared"
GROWTH_BYTES = 32 << 20
NUM_FRAMES, NUM_KNOCKS = 4000, 2000
"""How many malformed frames each of two keys sends, and how many knocks two keys make: 10,000 in all."""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh(NAME, {"procs": 2}) as started:
        yield started


def keys_of(mesh: Mesh) -> dict[str, KeyRow]:
    return {row.key: row for row in mesh._session.request(ListKeys())}


def audit_of(mesh: Mesh) -> list[AuditRow]:
    return mesh._session.request(GetAudit(1000))


def shared(mesh: Mesh, role: Role, key: str, expires_s: float | None = None) -> Invitation:
    return Invitation.from_json(mesh._session.request(Share(role, key, expires_s)).invitation)


@contextmanager
def member(mesh: Mesh, role: Role, key: str) -> Iterator[Mesh]:
    """Share the mesh, and attach to it by the invitation."""
    connection = membership.join(shared(mesh, role, key).to_token(), key)
    found = meshes.attach(connection.name, listens=False)
    try:
        yield found
    finally:
        found._session.close()
        if key in keys_of(mesh):
            mesh._session.request(Unshare(key))
        wait_until(
            lambda: not psutil.pid_exists(connection.pid) or is_zombie(connection.pid), "no relay is left"
        )


def is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module")
def observer(mesh: Mesh) -> Iterator[Mesh]:
    with member(mesh, Role.OBSERVER, "looker") as found:
        yield found


def asked(mesh: Mesh, name: str) -> str:
    """Send a request by its name alone; return what it's refused with."""
    transport = mesh._session.transport
    reply = Reply(transport, (address.CONTROLLER,), Status())
    transport.post(
        address.CONTROLLER, wire.CONTROL, Encoded(b"\x80"), ref=transport.expect(reply), name=name.encode()
    )
    wait_until(lambda: reply.ready, f"an answer to {name}")
    with pytest.raises(RequestFailed) as caught:
        reply.read()
    return str(caught.value)


# --- an observer


def test_an_observer_reads(mesh: Mesh, observer: Mesh) -> None:
    mesh.run("print('printed for all')", quiet=True)
    assert [r.rank for r in observer.status().ranks] == [0, 1]
    wait_until(
        lambda: any("printed for all" in e.source for e in observer.history()), "the cell is in history"
    )
    wait_until(
        lambda: "printed for all" in "".join(observer.journal.logs(observer.select("all"))), "its output"
    )


@pytest.mark.parametrize("name", sorted(n for n, role in NEEDS.items() if role > Role.OBSERVER))
def test_an_observer_is_refused_what_changes_something(name: str, observer: Mesh) -> None:
    text = asked(observer, name)
    assert "yours in mesh 'shared' is observer" in text and f"needs the role {NEEDS[name].word}" in text


def test_an_observer_stops_nothing_and_stays(mesh: Mesh, observer: Mesh) -> None:
    with pytest.raises(RequestFailed, match="'shut down' needs the role owner"):
        observer.stop()
    with pytest.raises(MeshError, match="'run cell' needs the role operator"):
        observer.run("1", quiet=True)
    assert observer.status().ranks and mesh.status().ranks


def test_a_refused_request_is_an_error_of_one_sentence(observer: Mesh) -> None:
    with pytest.raises(MeshError) as caught:
        observer.interrupt("all")
    assert str(caught.value).count("\n") == 0 and "needs the role operator" in str(caught.value)


class Trap:
    """Leaves a file where it's unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (self.path, "w")


def test_nothing_of_an_observers_is_unpickled(mesh: Mesh, observer: Mesh, tmp_path: Path) -> None:
    trap = str(tmp_path / "sprung")
    payload = pickle.dumps(Trap(trap))
    transport = observer._session.transport
    procs = [p.proc for p in mesh._session.request(Status()).procs]
    kinds = (
        wire.CALL,
        wire.REPLY,
        wire.COMBINED,
        wire.EVENT,
        wire.CONTROL,
        wire.OUTPUT,
        wire.RELEASE,
        wire.WAKE,
    )
    for kind in kinds:
        for dst in (address.CONTROLLER, *procs):
            for name in (b"", b"run", b"call", b"leave", b"status"):
                transport.send(
                    dst, wire.pack(kind, src=transport.me, dst=dst, ref=1, name=name, payload=payload)
                )
    for inner in kinds:
        frame = wire.pack(inner, src=transport.me, dst=0, ref=1, target=1, name=b"run", payload=payload)
        receivers = [(proc, i) for i, proc in enumerate(procs)]
        transport.send(address.CONTROLLER, wire.pack_fanout(transport.me, 0, receivers, frame))
    with pytest.raises(ActorError, match="'call' needs the role operator"):
        observer.execute(os.getpid).get(T)  # comes behind all that
    assert not os.path.exists(trap)
    assert len(set(mesh.execute(os.getpid).get(T).values())) == 2


def test_nothing_of_a_guests_is_unpickled(mesh: Mesh, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    payload = pickle.dumps(Trap(str(trap)))
    host = for_a_host(mesh)
    for invitation in (shared(mesh, Role.OPERATOR, "guest"), Invitation.from_json(host.invitation)):
        door = knocker(invitation)
        try:
            frames = [payload, wire.pack_fanout(0, 0, [(1, 0)], payload)]
            for kind, name in product(range(12), (b"", b"run", b"call", b"host_joined", b"ranks_printed")):
                frames.append(wire.pack(kind, src=0, dst=0, ref=1, name=name, payload=payload))
            for frame in frames:
                door.link.send(frame)
            assert all(answer.error for answer in door.answers(len(frames)))
        finally:
            door.close()
    assert not trap.exists()
    mesh._session.request(Withdraw(host.guest))
    mesh._session.request(Unshare("guest"))


# --- an operator


def test_an_operator_runs_cells_and_stops_nothing(mesh: Mesh) -> None:
    with member(mesh, Role.OPERATOR, "hand") as found:
        assert not found.run("from_afar = rank + 40", quiet=True).failures
        assert list(found.execute(os.getpid).get(T).values()) == list(mesh.execute(os.getpid).get(T).values())
        with pytest.raises(RequestFailed, match="needs the role owner"):
            found.stop()
        row = next(r for r in audit_of(mesh) if r.key == "hand" and r.what == "run cell")
        assert (row.detail, row.role, row.refused) == ("from_afar = rank + 40", Role.OPERATOR, "")
        assert "@" in row.who


def test_a_key_that_is_revoked_in_the_middle_of_a_cell(mesh: Mesh) -> None:
    with member(mesh, Role.OPERATOR, "brief") as found:
        running = found.cells.submit("import time\nwhile True: time.sleep(0.01)")
        wait_until(
            lambda: any(e.who.endswith("(brief)") and e.ended is None for e in mesh.history()), "it runs"
        )
        text = COMMANDS["unshare"].ask_text(mesh, key="brief")
        assert "brief" in text and "%mesh interrupt" in text
        with pytest.raises(
            MeshEnded, match=r"lets this program in no more as operator \(brief\): it was revoked"
        ):
            running.wait()
        assert "brief" not in keys_of(mesh)
        assert any(e.ended is None for e in mesh.history())  # cells go on
        mesh.interrupt("all")
        wait_until(lambda: all(e.ended for e in mesh.history()), "the owner has ended it")


# --- invitations


def test_an_invitation_is_one_persons(mesh: Mesh) -> None:
    with member(mesh, Role.OBSERVER, "first"):
        invitation = shared(mesh, Role.OBSERVER, "second")
        connection = membership.join(invitation.to_token(), "second")
        assert membership.join(invitation.to_token(), "second") == connection  # the same again
        with pytest.raises(launcher.LauncherError, match=r"is .*, who has come by it"):
            launcher.knock(invitation, "eve@elsewhere", None, KeyPair.new())
        with pytest.raises(NameTaken, match="--as NAME"):
            membership.join(shared(mesh, Role.OBSERVER, "third").to_token(), "second")
        assert {"first", "second", "third"} <= set(keys_of(mesh))
        assert COMMANDS["unshare"].ask_text(mesh, all=True)
        assert not keys_of(mesh)


def test_an_invitation_whose_time_is_up(mesh: Mesh) -> None:
    invitation = shared(mesh, Role.OPERATOR, "late", expires_s=0.01)
    wait_until(lambda: "late" not in keys_of(mesh), "its time is up")
    with pytest.raises(MeshStartError, match="isn't good any more"):
        membership.join(invitation.to_token(), "late")
    assert any(row.key == "late" and row.what == "time is up" for row in audit_of(mesh))


def test_a_program_is_out_when_its_time_is_up(mesh: Mesh) -> None:
    invitation = shared(mesh, Role.OBSERVER, "guest", expires_s=4.0)
    connection = membership.join(invitation.to_token(), "guest")
    found = meshes.attach(connection.name, listens=False)
    wait_until(lambda: found._session.transport.lost, "it's out")
    assert "its time was up" in found._session.transport.lost


def test_what_is_no_invitation(mesh: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "a.join"
    file.write_text("{}")
    file.chmod(0o644)
    with pytest.raises(MeshUsageError, match="chmod 600"):
        membership.join(str(file))
    file.chmod(0o600)
    for text in (
        str(file),
        str(tmp_path / "none.join"),
        "mnb:",
        "mnb:!!",
        "mnb:e30=",
        "mnb:" + "A" * 100_000,
    ):
        with pytest.raises(MeshUsageError, match="attach: "):
            membership.join(text)
    with pytest.raises(RequestFailed, match="can't be shared"):
        shared(mesh, Role.OWNER, "thief")
    with pytest.raises(RequestFailed, match="no key 'nobody'"):
        mesh._session.request(Unshare("nobody"))


def test_a_host_does_not_join_by_it(mesh: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "o.join"
    membership.write(str(file), shared(mesh, Role.OBSERVER, "no-host").to_json())
    assert os.stat(file).st_mode & 0o777 == 0o600
    ran = terminal("host", "--join", str(file))
    assert ran.returncode and "for observers, not for hosts" in ran.stderr
    mesh._session.request(Unshare("no-host"))


def test_new_keys_put_everybody_out(mesh: Mesh) -> None:
    before, unused = shared(mesh, Role.OPERATOR, "old"), shared(mesh, Role.OBSERVER, "unused")
    found = meshes.attach(membership.join(before.to_token(), "old").name, listens=False)
    output = COMMANDS["rekey"].ask_text(mesh)
    assert "old" in output and "unused" in output and not keys_of(mesh)
    wait_until(lambda: found._session.transport.lost, "it's out")
    assert "was given new keys" in found._session.transport.lost
    for invitation in (before, unused):
        with pytest.raises(MeshStartError, match="can't be attached to"):
            membership.join(invitation.to_token(), "again")
    with member(mesh, Role.OBSERVER, "new") as found:
        assert found.status().ranks
        assert shared(mesh, Role.OBSERVER, "other").controller_key != before.controller_key
    mesh._session.request(Unshare(""))


# --- nonsense at the port


class Raw:
    """A connection with a member's key and no relay: it sends whatever it likes."""

    def __init__(self, invitation: Invitation, keys: KeyPair) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.link = self.context.socket(zmq.DEALER)
        self.link.setsockopt(zmq.LINGER, 10_000)
        self.link.curve_serverkey = invitation.controller_key.encode()
        self.link.curve_publickey, self.link.curve_secretkey = keys.public.encode(), keys.secret.encode()
        self.link.connect(invitation.addresses[0])

    def answers(self, number: int) -> list[Admission]:
        """Return the answers to as many knocks."""
        found = []
        for _ in range(number):
            assert self.link.poll(T * 1000), "an answer to each knock"
            found.append(Admission.from_json(self.link.recv()))
        return found

    def ask_status(self, index: int) -> None:
        """Ask as a program that isn't known; return when that was refused: all before it has been read."""
        src = address.new_client_id(index)
        request = wire.pack(wire.CONTROL, src=src, dst=address.CONTROLLER, ref=1, name=b"status")
        self.link.send(request)
        while True:
            assert self.link.poll(T * 1000), "an answer"
            message = wire.unpack(self.link.recv_multipart()[-1])
            if message.dst == src:
                assert message.flags & wire.ERROR
                return

    def close(self) -> None:
        self.context.destroy(10_000)


def knocker(invitation: Invitation) -> Raw:
    """Return a connection with the key of an invitation, which may only knock."""
    return Raw(invitation, KeyPair(invitation.guest_public, invitation.guest_secret))


def for_a_host(mesh: Mesh) -> Invited:
    return mesh._session.request(Invite(NAME, 1, 10 * T, network="127.0.0.0/8"))


def senseless_knock(rng: Random, trap: bytes) -> list[bytes]:
    """Return a knock that is none: cut, of other fields, in many parts, a pickle, or for another address."""
    good = Knock(
        KeyPair.new().public, "node", wire.VERSION, "tcp://10.0.0.9:1", rng.getrandbits(70)
    ).to_json()
    fields = {rng.choice(["public", "node", "wire_version", "address", "x"]): rng.choice([None, 7, "x", []])}
    return rng.choice(
        [
            [good],
            [good[: rng.randrange(len(good))]],
            [good, b""],
            [json.dumps({**json.loads(good), **fields}).encode()],
            [trap],
            [rng.randbytes(rng.randrange(300))],
            [b"[" * rng.randrange(60_000)],
        ]
    )


def nonsense(rng: Random, index: int, trap: bytes) -> list[bytes]:
    """Return a message that makes no sense, or one in the name of somebody else."""
    src = rng.choice(
        [0, 1, 1 << 32, address.host_proc(index), address.new_client_id(index), rng.getrandbits(64)]
    )
    name = rng.choice(
        [b"", b"hello", b"status", b"shut_down", b"leave", b"host_joined", b"\xff", b"x" * 60_000]
    )
    frame = wire.pack(
        rng.randrange(12), src=src, dst=rng.choice([0, 1, 1 << 32, rng.getrandbits(64)]),
        ref=rng.getrandbits(40), target=rng.randrange(3), name=name,
        payload=rng.choice([trap, rng.randbytes(rng.randrange(300))]),
    )  # fmt: skip
    cut = frame[: rng.randrange(len(frame) + 1)] if rng.random() < 0.5 else frame
    return [cut, *(rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(3)))]


def test_malformed_frames_by_the_port(mesh: Mesh, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    pickled = pickle.dumps(Trap(str(trap)))
    controller = psutil.Process(mesh._session.connection.pid)
    rng = Random(7)
    invitation, keys = shared(mesh, Role.OBSERVER, "noise"), KeyPair.new()
    place = launcher.knock(invitation, "noise@here", None, keys)
    index, host = place.admission.host, for_a_host(mesh)
    member, *knockers = doors = [
        Raw(invitation, keys),
        knocker(invitation),
        knocker(Invitation.from_json(host.invitation)),
    ]

    def send(num_frames: int, num_knocks: int) -> None:
        for door in (member, knockers[0]):
            for _ in range(num_frames):
                door.link.send_multipart(nonsense(rng, index, pickled))
        member.ask_status(index)
        knockers[0].answers(num_frames)
        for door in knockers:
            for _ in range(num_knocks):
                door.link.send_multipart(senseless_knock(rng, pickled))
            assert all(answer.error for answer in door.answers(num_knocks)), "nobody is let in"

    try:
        send(100, 100)
        before = controller.memory_info().rss
        send(NUM_FRAMES, NUM_KNOCKS // 2)
    finally:
        for door in doors:
            door.close()
        mesh._session.request(Withdraw(host.guest))
    assert not trap.exists(), "nothing was unpickled"
    assert len(set(mesh.execute(os.getpid).get(T).values())) == 2
    assert [h.state for h in mesh.status().hosts].count("up") == 1, "nobody has joined"
    assert controller.memory_info().rss - before < GROWTH_BYTES
    wait_until(
        lambda: any(r.key == "noise" and r.what == "speak as another" for r in audit_of(mesh)), "noted"
    )
    assert len(audit_of(mesh)) <= 1000
    mesh._session.request(Unshare("noise"))


# --- from a terminal


def terminal(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "monarch_nb", *words],
        capture_output=True, text=True, timeout=T, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_from_terminals_of_two_users(mesh: Mesh, tmp_path: Path) -> None:
    file, theirs = tmp_path / "term.join", {"JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    share = terminal("share", NAME, "--for", "2h", "--to", "ada", "--file", str(file))
    assert "as an observer for 2 h" in share.stdout and "monarch-nb attach FILE" in share.stdout, share.stderr
    output = terminal("attach", str(file), **theirs).stdout
    assert "can be used here as an observer" in output
    assert "2 ranks" in terminal("status", NAME, **theirs).stdout
    refused = terminal("stop", NAME, **theirs)
    assert refused.returncode and "'shut down' needs the role owner" in refused.stderr
    assert "ada" in terminal("share", NAME, "--list").stdout
    assert "ada" in terminal("unshare", NAME, "ada").stdout
    output = terminal("history", NAME, "--audit").stdout
    assert "shut down" in output and "refused" in output and "ada" in output


def test_the_audit_is_kept_beside_the_journal_for_its_user_alone(mesh: Mesh) -> None:
    file = Path(mesh._session.request(Status()).journal) / "audit.jsonl"
    wait_until(file.exists, "it's written")
    assert file.stat().st_mode & 0o777 == 0o600
    assert {"share", "run cell"} <= {json.loads(line)["what"] for line in file.read_text().splitlines()}
