"""Frames between processes of one machine: order, bounds, interrupts, ends, and what there's no room for."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import select
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from monarch_nb._host.local_sockets import LocalSockets
from monarch_nb._host.loop import Loop
from monarch_nb._wire import message as wire
from monarch_nb._wire.local_sockets import (
    BUFFER_BYTES,
    MAX_RETRY_S,
    MIN_RETRY_S,
    PIECE_BYTES,
    RETRIES,
    Joiner,
    LocalReceiver,
    LocalSender,
    SendQueues,
)
from monarch_nb._wire.message import WireError

T = 60


class Sending:
    """Senders of this process, and a thread that sends what couldn't be sent at once."""

    def __init__(self) -> None:
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._ending = threading.Event()
        self._woken_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.queues = SendQueues(self._call_later)
        self._senders: list[LocalSender] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + delay_s, call))

    def _run(self) -> None:
        while not self._ending.is_set():
            wait_s = max(0.0, min(t for t, _ in self._timers) - time.monotonic()) if self._timers else None
            select.select([self.queues.fileno(), self._woken_fd], [], [], wait_s)
            due = [t for t in self._timers if t[0] <= time.monotonic()]
            self._timers = [t for t in self._timers if t not in due]
            for _, call in due:
                call()
            self.queues.run()

    def to(self, path: str) -> LocalSender:
        sender = LocalSender(path, self.queues)
        self._senders.append(sender)
        return sender

    def close(self) -> None:
        self._ending.set()
        os.eventfd_write(self._woken_fd, 1)
        self._thread.join()
        for sender in self._senders:
            sender.close()
        self.queues.close()
        os.close(self._woken_fd)


@pytest.fixture
def sending() -> Iterator[Sending]:
    made = Sending()
    yield made
    made.close()


class Mailbox:
    """A receiver and the whole messages that came."""

    def __init__(self, path: str) -> None:
        self.receiver = LocalReceiver(path)
        self._arrived: deque[bytes] = deque()
        self._joiner = Joiner()
        self.messages: list[bytes] = []

    def receive(self, wait_s: float = T) -> bool:
        """Take what has come; False if nothing came in time."""
        some = self.receiver.receive(wait_s, self._arrived)
        while self._arrived:
            piece = self._arrived.popleft()
            frame = self._joiner.whole(piece)
            if frame is not None:
                self.messages.append(frame)
                self._joiner.done(piece)
        return some

    def receive_until(self, count: int) -> None:
        while len(self.messages) < count:
            assert self.receive(), f"{len(self.messages)} of {count} messages came"


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    made = Mailbox(str(tmp_path / "p1"))
    yield made
    made.receiver.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "p1")


def test_messages_of_all_sizes_come_whole_and_in_order(path: str, mailbox: Mailbox, sending: Sending) -> None:
    sizes = [1, 52, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 5_000_001, 7]
    sent = [b"\3" + os.urandom(size - 1) for size in sizes]
    sender = sending.to(path)
    for frame in sent:
        sender.send(frame)
    mailbox.receive_until(len(sent))
    assert mailbox.messages == sent


def test_long_messages_of_several_threads_and_senders_are_not_mixed(
    path: str, mailbox: Mailbox, sending: Sending
) -> None:
    senders = [sending.to(path) for _ in range(3)]

    def send(number: int) -> None:
        for i in range(40):
            length = 8 + (i % 5) * PIECE_BYTES
            senders[number % 3].send(b"\3%c%c" % (number, i) + bytes([number]) * length)

    threads = [threading.Thread(target=send, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    mailbox.receive_until(6 * 40)
    for thread in threads:
        thread.join()
    for frame in mailbox.messages:
        assert frame[3:] == frame[1:2] * (8 + (frame[2] % 5) * PIECE_BYTES)
    for number in range(6):
        assert [frame[2] for frame in mailbox.messages if frame[1] == number] == list(range(40))


def test_a_send_never_blocks_and_what_the_kernel_has_no_room_for_comes_later(
    path: str, mailbox: Mailbox, sending: Sending
) -> None:
    sender = sending.to(path)
    frames = [b"\3%06d" % i + bytes(20_000) for i in range(4 * BUFFER_BYTES // 20_000)]
    for frame in frames:  # nobody reads meanwhile
        sender.send(frame)
    mailbox.receive_until(len(frames))
    assert mailbox.messages == frames


def test_what_is_sent_before_somebody_listens_comes_when_he_does(path: str, sending: Sending) -> None:
    sender = sending.to(path)
    for i in range(100):
        sender.send(b"\3%d" % i)
    mailbox = Mailbox(path)
    mailbox.receive_until(100)
    assert mailbox.messages == [b"\3%d" % i for i in range(100)]
    mailbox.receiver.close()


def test_many_who_are_not_there_are_tried_less_often_the_longer_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a timer doesn't make two: there would soon be time for nothing else."""
    start, timers, calls = 1000.0, list[tuple[float, int, Callable[[], None]]](), itertools.count()
    now = start
    monkeypatch.setattr(time, "monotonic", lambda: now)
    queues = SendQueues(lambda delay_s, call: heapq.heappush(timers, (now + delay_s, next(calls), call)))
    senders = []
    for i in range(50):  # one after the other, so that each has another time to wait
        now = start + i * 0.003
        senders.append(LocalSender(str(tmp_path / f"p{i}"), queues))
        for _ in range(3):
            senders[-1].send(b"\3x")
            queues.run()
    fired = []
    while timers[0][0] < start + 60:
        now, _, call = heapq.heappop(timers)
        call()
        fired.append(now)
        assert len(timers) <= len(senders)
    rounds = 60 / MAX_RETRY_S + RETRIES * math.log(MAX_RETRY_S / MIN_RETRY_S) + 2 * RETRIES
    assert len(fired) <= 4 * rounds  # with those that an earlier one has taken the place of
    gaps = [after - before for before, after in itertools.pairwise(fired)]
    assert max(gaps) <= MAX_RETRY_S + 1e-9 and max(gaps[:50]) <= 3 * MIN_RETRY_S
    for sender in senders:
        sender.close()
    queues.close()


def test_a_sender_reaches_who_listens_there_next(path: str, sending: Sending) -> None:
    sender, first = sending.to(path), Mailbox(path)
    sender.send(b"\3first")
    first.receive_until(1)
    first.receiver.close()
    second = Mailbox(path)
    sender.send(b"\3second")
    second.receive_until(1)
    assert second.messages == [b"\3second"]
    second.receiver.close()


def test_the_socket_is_for_its_owner_only(path: str, mailbox: Mailbox) -> None:
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_closing_sends_what_is_queued(path: str, mailbox: Mailbox, sending: Sending) -> None:
    queues = SendQueues(lambda _delay_s, _call: None)  # that nobody runs
    sender = LocalSender(path, queues)
    frames = [b"\3%06d" % i + bytes(20_000) for i in range(2 * BUFFER_BYTES // 20_000)]
    for frame in frames:
        sender.send(frame)
    closing = threading.Thread(target=sender.close, args=(T,))
    closing.start()
    mailbox.receive_until(len(frames))
    closing.join()
    queues.close()
    assert mailbox.messages == frames


class ClosedWhenFull(LocalSender):
    """A sender that another thread closes just when the kernel has turned out to have no more room."""

    def send_queued(self) -> int | None:
        fd = super().send_queued()
        if fd is not None:
            self.close()
        return fd


def test_a_sender_that_is_closed_meanwhile_holds_up_no_other(path: str, mailbox: Mailbox) -> None:
    queues = SendQueues(lambda _delay_s, _call: None)
    closed, other = ClosedWhenFull(path, queues), LocalSender(path, queues)
    for _ in range(2 * BUFFER_BYTES // 20_000):
        closed.send(b"\3" + bytes(20_000))
    frame = b"\3" + bytes(PIECE_BYTES)
    other.send(frame)
    queues.run()
    while frame not in mailbox.messages:
        assert mailbox.receive(T if not mailbox.messages else 0.0), "it never came"
    other.close()
    queues.close()


def test_closing_waits_no_longer_than_it_should_for_who_is_not_there(path: str) -> None:
    queues = SendQueues(lambda _delay_s, _call: None)
    sender = LocalSender(path, queues)
    sender.send(b"\3nobody's")
    began = time.monotonic()
    sender.close(0.05)
    assert 0.05 <= time.monotonic() - began < T
    queues.close()


def test_connections_that_have_ended_cost_nothing(path: str, mailbox: Mailbox, sending: Sending) -> None:
    def send_and_leave() -> None:
        sender = LocalSender(path, sending.queues)
        sender.send(b"\3x")
        sender.close()

    send_and_leave()
    mailbox.receive_until(1)
    before = len(os.listdir("/proc/self/fd"))
    for i in range(2, 102):
        send_and_leave()
        mailbox.receive_until(i)
    while mailbox.receive(0):
        pass  # the ends of the last connections
    assert len(os.listdir("/proc/self/fd")) <= before


def test_to_wake_up_is_no_message(mailbox: Mailbox) -> None:
    threading.Thread(target=mailbox.receiver.wake_up).start()
    assert mailbox.receive()
    assert mailbox.messages == []
    assert not mailbox.receive(0)


INTERRUPTED = """
import os, signal, sys, threading
from collections import deque
from monarch_nb._wire.local_sockets import LocalReceiver

receiver, arrived, interrupts = LocalReceiver(sys.argv[1]), deque(), 0
count, begun_fd = int(sys.argv[2]), os.eventfd(0)  # a lock might be held for good by an interrupt

def interrupt():
    while True:
        os.eventfd_read(begun_fd)
        os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
print("listens", flush=True)
while True:
    try:
        os.eventfd_write(begun_fd, 1)
        while len(arrived) < count:
            receiver.receive(60, arrived)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        break
    except KeyboardInterrupt:
        interrupts += 1
assert list(arrived) == [b"\\3%d" % i for i in range(count)], "lost or repeated"
print(interrupts)
"""


def test_interrupts_lose_no_message_and_repeat_none(path: str, sending: Sending) -> None:
    receiving = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, path, "20000"], stdout=subprocess.PIPE, text=True
    )
    assert receiving.stdout is not None
    try:
        assert receiving.stdout.readline() == "listens\n"
        sender = sending.to(path)
        for i in range(20_000):
            sender.send(b"\3%d" % i)
        interrupts, _ = receiving.communicate(timeout=T)
    finally:
        receiving.kill()
        receiving.wait()
    assert receiving.returncode == 0
    assert int(interrupts) > 0


def test_a_host_process_handles_what_came_before_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sending: Sending
) -> None:
    """Nothing would remind it of what was read already."""
    heard: list[wire.Message] = []
    sockets = LocalSockets(Loop(), str(tmp_path), heard.append)
    sockets.listen(1)
    receive = LocalReceiver.receive

    def receive_and_fail(self: LocalReceiver, wait_s: float, arrived: deque[bytes]) -> bool:
        assert receive(self, T, arrived)
        raise OSError("another connection was broken")

    monkeypatch.setattr(LocalReceiver, "receive", receive_and_fail)
    sending.to(str(tmp_path / "p1")).send(wire.pack(wire.EVENT, src=2, dst=1, name=b"Happened"))
    while not heard:  # the connection comes first
        with pytest.raises(OSError, match="broken"):
            sockets._receive()
    assert [message.name for message in heard] == [b"Happened"]
    sockets.close(0.0)


WITHOUT_A_FREE_DESCRIPTOR = """
import resource, sys
from collections import deque
from monarch_nb._wire.local_sockets import LocalReceiver, LocalSender, SendQueues

path, arrived = sys.argv[1], deque()
receiver = LocalReceiver(path)
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
queues = SendQueues(lambda delay_s, call: due.append(call))
due = []

def none_is_free(is_so):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]) if is_so else limits)

def receive_until(count):
    while len(arrived) < count:
        queues.run()
        while due:
            due.pop()()
        assert receiver.receive(60, arrived), arrived
"""
"""For a process of its own: other tests' threads would fail meanwhile. (b"\\3" begins a whole message.)"""


def _without_a_free_descriptor(path: str, steps: str) -> None:
    program = WITHOUT_A_FREE_DESCRIPTOR + textwrap.dedent(steps)
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=T)
    assert done.returncode == 0, done.stderr


def test_without_a_free_descriptor_others_are_read_and_the_connection_is_accepted_later(path: str) -> None:
    _without_a_free_descriptor(
        path,
        r"""
        known = LocalSender(path, queues)
        known.send(b"\3known")
        receive_until(1)
        stranger = LocalSender(path, queues)
        stranger.send(b"\3new")
        none_is_free(True)
        known.send(b"\3meanwhile")
        receive_until(2)
        none_is_free(False)
        receive_until(3)
        assert [*arrived] == [b"\3known", b"\3meanwhile", b"\3new"], arrived
        """,
    )


def test_without_a_free_descriptor_what_is_sent_comes_later(path: str) -> None:
    _without_a_free_descriptor(
        path,
        r"""
        none_is_free(True)
        sender = LocalSender(path, queues)
        sender.send(b"\3sent")
        none_is_free(False)
        receive_until(1)
        assert [*arrived] == [b"\3sent"], arrived
        """,
    )


@pytest.mark.parametrize("length", [1, 4, 15])
def test_what_is_too_short_for_a_piece_is_refused(length: int) -> None:
    with pytest.raises(WireError, match=f"has {length} bytes; expected 16"):
        Joiner().whole(bytes(length))


def test_the_rest_of_a_message_whose_beginning_another_has_read_is_dropped(
    path: str, mailbox: Mailbox, sending: Sending
) -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    kept: list[bytes] = []
    sender = LocalSender(path, sending.queues)
    kept.extend(sender._pieces(b"\3" + bytes(4 * PIECE_BYTES)))
    for piece in kept[2:]:
        connection.send(piece)
    connection.send(b"\3after")
    mailbox.receive_until(1)
    assert mailbox.messages == [b"\3after"]
    connection.close()
    sender.close()


def test_closing_ends_a_receive_that_waits_however_late_the_kernel_wakes_it(path: str) -> None:
    receiver = LocalReceiver(path)
    epoll_fd = receiver.fileno()
    thread = threading.Thread(target=receiver.receive, args=(-1.0, deque()), daemon=True)
    thread.start()
    wait_until(lambda: _is_asleep(thread), "a thread that waits in the kernel")
    receiver.close()
    thread.join(T)
    assert not thread.is_alive()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(epoll_fd)
    with pytest.raises(ValueError, match="closed"):
        receiver.receive(0.0, deque())


def _is_asleep(thread: threading.Thread) -> bool:
    """Say whether the kernel has a thread wait."""
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0] == "S"
