"""What is asked for is answered, whatever it is; and more than the machine has room for is refused before
it has cost anything.
"""

from __future__ import annotations

import os
import pickle
import time
from typing import Any

import pytest
from processes import mesh_processes

from monarch_nb import mesh as meshes
from monarch_nb._client import session as sessions
from monarch_nb._commands.command import Place
from monarch_nb._commands.parser import Parser
from monarch_nb._commands.table import COMMANDS
from monarch_nb._host import capacity
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.ranks import Tickets
from monarch_nb._server.bodies import BadBody, read_sizes
from monarch_nb._transport.pending import Reply
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.codec import Encoded
from monarch_nb.actor import this_host
from monarch_nb.exceptions import HealError, MeshUsageError, RequestFailed
from monarch_nb.job import ProcessJob

LOTS = 999_999_999
SOON_S = 20.0
"""Less than a request may take."""


def memory_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("op", "fields", "message"),
    [
        ("spawn", {}, "not a 'spawn' as this version knows it: Object missing required field `hosts`"),
        (
            "spawn",
            {"per_host": "many", "hosts": [0], "group": "g", "spec": {}, "method": "fork"},
            r"Expected `int`, got `str` - at `\$.per_host`",
        ),
        ("stop", {"procs": [None], "grace_s": 0}, r"Expected `int`, got `None` - at `\$.procs\[0\]`"),
        ("stop", {"procs": [1 << 50], "grace_s": 0}, "no process"),
        ("status", {"unknown": 1}, "unknown field `unknown`"),
        ("status", {}, ""),
        ("set_lease", {"idle_timeout_s": "soon"}, "Expected `float`, got `str`"),
        ("nonsense", {}, "knows no request 'nonsense'"),
        ("read_output", {"group": "g"}, "missing required field `ranks`"),
        ("checkpoint_gather", {"actor_id": 1}, "missing required field"),
    ],
)
def test_every_request_is_answered(op: str, fields: dict[str, Any], message: str) -> None:
    this_host().initialized.get(60)
    if message:
        with pytest.raises(RequestFailed, match=message):
            ask_raw(op.encode(), encode(fields))
    else:
        ask_raw(op.encode(), encode(fields))
    assert sessions.current().request(Status(), SOON_S).pid


def ask_raw(name: bytes, payload: bytes) -> None:
    """Send the controller whatever it is; read what it answers."""
    transport = sessions.current().transport
    reply = Reply(transport, (address.CONTROLLER,), Status())
    transport.post(address.CONTROLLER, wire.CONTROL, Encoded(payload), ref=transport.expect(reply), name=name)
    assert transport.reader.wait(reply, time.monotonic() + SOON_S)
    reply.read()


@pytest.mark.parametrize("payload", [b"no pickle", pickle.dumps(3), pickle.dumps(["a", "b"]), b""])
def test_what_cant_be_read_is_answered_too(payload: bytes) -> None:
    with pytest.raises(RequestFailed, match="not a 'get_name' as this version knows it: "):
        ask_raw(b"get_name", payload)


def test_more_ranks_than_there_is_room_for_cost_nothing() -> None:
    this_host().initialized.get(60)
    controller = sessions.current().request(Status()).pid
    before, running = [memory_bytes(p) for p in (os.getpid(), controller)], mesh_processes()
    with pytest.raises(
        MeshUsageError,
        match=r"999,999,999 processes are too many for this machine: it has room for [\d,]+ more \(.*--force",
    ):
        meshes.start("huge", {"gpus": LOTS})
    with pytest.raises(MeshUsageError, match="too many for this machine"):
        meshes.start("huge", {"gpus": 2}, num_hosts=LOTS)
    with pytest.raises(
        MeshUsageError, match=r"too many for this machine: it has room for [\d,]+ more \(.*\)$"
    ):
        meshes.start("huge", {"gpus": LOTS}, force=True)
    with pytest.raises(RequestFailed, match="too many for this machine"):
        this_host().spawn_procs({"gpus": LOTS})
    with pytest.raises(ValueError, match="too many for this machine"):
        ProcessJob({"hosts": LOTS}).state()
    with pytest.raises(RequestFailed, match="too many for this machine"):
        sessions.current().request(Tickets(LOTS))
    assert mesh_processes() == running
    for pid, bytes_before in zip((os.getpid(), controller), before, strict=True):
        assert memory_bytes(pid) - bytes_before < 64 << 20


def test_a_resize_is_bounded_too() -> None:
    procs = this_host().spawn_procs({"gpus": 1})
    procs.initialized.get(60)
    with pytest.raises(HealError, match=r"^not resized, or not completely:\n.* too many for this machine"):
        procs.resize(gpus=LOTS, force=True)
    some, most = capacity.bound().num, capacity.bound(force=True).num
    if most - 1 > some:
        expected = rf"for {some:,} more.*; %mesh resize --force \(force=True\) allows"
        with pytest.raises(HealError, match=expected):
            procs.resize(gpus=most)
    procs.resize(gpus=2)
    procs.stop().get(30)


def test_force_goes_further_and_not_beyond_what_the_system_allows() -> None:
    some, most = capacity.bound().num, capacity.bound(force=True).num
    assert capacity.TRIED_RANKS < some <= most <= capacity.MOST_RANKS
    capacity.check_room(some - 1 if some == most else some + 1, force=True)
    with pytest.raises(ValueError, match="too many"):
        capacity.check_room(capacity.MOST_RANKS + 1, force=True)
    capacity.check_room(1)


def test_a_dimension_is_given_once() -> None:
    parser = Parser(prog="%mesh start")
    COMMANDS["start"].add_to(parser, Place.NOTEBOOK)
    with pytest.raises(MeshUsageError, match="each dimension once; 'gpus' is there twice in 'gpus=1,gpus=2'"):
        parser.parse_args(["--dims", "gpus=1,gpus=2"])
    with pytest.raises(BadBody, match="'gpus' is there twice"):
        read_sizes([["gpus", 1], ["gpus", 2]], "dims")
