"""A host process tells its controller in one message what all its ranks have printed, and which have ended.

The controller is the test: it counts. The host process and its ranks are real; their program is a shell's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import zmq
from waiting import wait_until

from monarch_nb._host.config import HostConfig
from monarch_nb._host.starting import start_host_process
from monarch_nb._protocol.base import Event, Request, decode, encode
from monarch_nb._protocol.events import Beat, EndsHere, HostJoined, Leave, RanksPrinted
from monarch_nb._protocol.rank_spec import GroupPlace, GroupSpec, RankPlace, StartCommand
from monarch_nb._protocol.ranks import StartRanks, StopRanks, Ticket
from monarch_nb._protocol.runs import runs_of
from monarch_nb._protocol.states import StartMethod
from monarch_nb._shape import Extent, encode_extent
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.keys import KeyPair

T = 60
NUM_RANKS = 24
HOST = 3
PROCS = [address.proc_id(HOST, i + 1) for i in range(NUM_RANKS)]
PRINTING = """
trap '' TERM
cd "$1"
exec 3< gate
: > ready.$$
read _ <&3
echo first; echo second
: > printed.$$
exec sleep 600
"""


class CountingController:
    """Has a host process dial in, and keeps what it sends."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = KeyPair.new(), KeyPair.new()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        link = self._link = self._context.socket(zmq.ROUTER)
        link.setsockopt(zmq.LINGER, 0)
        link.curve_server = True
        link.curve_secretkey, link.curve_publickey = ours.secret.encode(), ours.public.encode()
        port = link.bind_to_random_port("tcp://127.0.0.1")
        endpoint = f"tcp://127.0.0.1:{port}"
        ticket = Ticket(HOST, 0, "gpu-3", endpoint, ours.public, theirs.public, theirs.secret)
        self.directory = str(folder / "host")
        config = HostConfig(HOST, self.directory, list(sys.path), warm=False)
        self.host = start_host_process(config.with_ticket(ticket, self.directory), os.environ)
        self._identity = b""
        self.heard: list[wire.Message] = []
        self.hear_until(lambda: self.of(HostJoined))
        self._send(wire.EVENT, Beat())

    def of(self, kind: type[Event]) -> list[wire.Message]:
        return [m for m in self.heard if m.name == kind.wire_name.encode()]

    def hear_until(self, is_there: Callable[[], object]) -> None:
        """Keep what comes until something has come."""
        while not is_there():
            assert self._link.poll(T * 1000), "a message of the host"
            self._identity, frame = self._link.recv_multipart()
            self.heard.append(wire.unpack(frame))

    def ask(self, request: Request[None]) -> None:
        self._send(wire.CONTROL, request)

    def _send(self, kind: int, message: Event | Request[None]) -> None:
        to, name = address.host_proc(HOST), message.wire_name.encode()
        frame = wire.pack(kind, src=address.CONTROLLER, dst=to, name=name, payload=encode(message))
        self._link.send_multipart([self._identity, frame])

    def close(self) -> None:
        try:
            self.host.send_signal(signal.SIGCONT)
            self._send(wire.EVENT, Leave())
            assert self.host.wait(T) == 0
        finally:
            self.host.kill()
            self.host.wait()
            self._context.destroy(0)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[CountingController]:
    made = CountingController(tmp_path)
    yield made
    made.close()


def start_ranks(controller: CountingController, folder: Path) -> list[int]:
    """Have ranks start that print when the gate opens; return their pids once they wait there."""
    command = StartCommand("/bin/sh", args=["-c", PRINTING, "sh", str(folder)])
    extent = encode_extent(Extent(["gpus"], [NUM_RANKS]))
    spec = GroupSpec("workers", extent, commands=[command])
    place = GroupPlace(runs_of(PROCS), runs_of([HOST]), ("", "", "", "", "", 0, None))
    ranks = [RankPlace(proc, i, i, NUM_RANKS, NUM_RANKS, {}) for i, proc in enumerate(PROCS)]
    controller.ask(StartRanks(ranks, spec, place, StartMethod.SPAWN))
    return marked(folder, "ready")


def marked(folder: Path, mark: str) -> list[int]:
    """Return the pids of all ranks once they have left a mark."""
    wait_until(lambda: len(list(folder.glob(f"{mark}.*"))) == NUM_RANKS, f"{mark}: all ranks", T)
    return [int(path.suffix[1:]) for path in folder.glob(f"{mark}.*")]


def stand_still(host: subprocess.Popen[bytes]) -> None:
    """Stop a host process, with all its threads."""
    host.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(host.pid).status() == psutil.STATUS_STOPPED, "it stands still", T)


def kill_unseen(host: subprocess.Popen[bytes], pids: list[int]) -> None:
    """Kill ranks while their host process stands still, so that it finds their ends together."""
    stand_still(host)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    dead = psutil.STATUS_ZOMBIE
    wait_until(lambda: all(psutil.Process(pid).status() == dead for pid in pids), "they are dead", T)
    host.send_signal(signal.SIGCONT)


def printing_ranks(controller: CountingController, folder: Path) -> list[int]:
    """Start ranks, and have all print while the host process stands still; return their pids."""
    os.mkfifo(folder / "gate")
    gate = os.open(folder / "gate", os.O_RDWR)  # the only writer
    pids = start_ranks(controller, folder)
    stand_still(controller.host)
    os.close(gate)
    marked(folder, "printed")
    controller.host.send_signal(signal.SIGCONT)
    return pids


def printed_text(controller: CountingController) -> dict[int, bytes]:
    """Return what each rank has printed, once all have."""

    def found() -> dict[int, bytes]:
        text: dict[int, bytes] = {}
        for message in controller.of(RanksPrinted):
            for each in decode(RanksPrinted, message.payload).printed:
                text[each.proc] = text.get(each.proc, b"") + each.piece[3]
        return text

    controller.hear_until(lambda: len(found()) == NUM_RANKS)
    return found()


def test_what_many_ranks_do_at_once_is_one_message(controller: CountingController, tmp_path: Path) -> None:
    pids = printing_ranks(controller, tmp_path)
    said = printed_text(controller)
    assert said == dict.fromkeys(PROCS, b"first\nsecond\n"), "of each rank, in its order"
    assert len(controller.of(RanksPrinted)) == 1

    half = NUM_RANKS // 2
    kill_unseen(controller.host, pids[:half])
    controller.hear_until(lambda: controller.of(EndsHere))
    (lost,) = (decode(EndsHere, m.payload).ends for m in controller.of(EndsHere))
    assert len(lost) == half and not any(end.stopped for end in lost)
    assert {end.pid for end in lost} == set(pids[:half])

    left = [proc for proc in PROCS if proc not in {end.proc for end in lost}]
    controller.heard.clear()
    controller.ask(StopRanks(left, 10 * T))
    paths = [Path(address.stop_path(controller.directory, proc)) for proc in left]
    wait_until(lambda: all(path.exists() for path in paths), "all ranks have been asked to exit", T)
    kill_unseen(controller.host, pids[half:])
    controller.hear_until(lambda: controller.of(EndsHere))
    (stopped,) = (decode(EndsHere, m.payload).ends for m in controller.of(EndsHere))
    assert sorted(end.proc for end in stopped) == left and all(end.stopped for end in stopped)
