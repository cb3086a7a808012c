"""Who reads the socket, how much at once, and how often the background reader looks."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb._transport import reader as reader_module
from monarch_nb._transport.reader import MAX_TICK_S, TICK_S, Reader, Waiter
from monarch_nb._wire import local_sockets
from monarch_nb._wire.local_sockets import LocalReceiver, LocalSender

T = 30
_TICK_MS, _MAX_TICK_MS = round(TICK_S * 1000), round(MAX_TICK_S * 1000)


class Mail:
    """Waits for one message at least; a background waiter unless told otherwise."""

    def __init__(self, *, urgent: bool = False) -> None:
        self.park: threading.Lock | None = None
        self.urgent = urgent
        self.due: float | None = None
        self.got: list[bytes] = []

    @property
    def ready(self) -> bool:
        return bool(self.got)

    def expire(self) -> None:
        """Never due."""


class Post:
    """A reader whose messages begin with the name of whom they're for."""

    def __init__(self, path: str) -> None:
        self.receiver = LocalReceiver(path)
        self.mail: dict[bytes, Mail] = {}
        self.everything: list[bytes] = []
        self.heard = threading.Event()
        self.reader = Reader(self.receiver, self._dispatch)
        self.push = LocalSender(path, self.reader.send_queues)

    def _dispatch(self, frame: bytes) -> Waiter | None:
        self.everything.append(frame)
        if frame == b"ping":
            self.heard.set()
            return None
        mail = self.mail[frame[:1]]
        mail.got.append(frame)
        return mail

    def close(self) -> None:
        self.reader.close()
        self.push.close()
        self.reader.send_queues.close()
        self.receiver.close()


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    made = Post(str(tmp_path / "mail"))
    yield made
    made.close()


def test_who_finds_a_message_there_takes_along_those_behind_it(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_sockets, "BURST_S", T)  # however slow this machine is
    post.mail[b"a"] = mine = Mail(urgent=True)
    for i in range(5):
        post.push.send(b"a%d" % i)
    assert post.reader.wait(mine)
    assert mine.got == [b"a%d" % i for i in range(5)]


def test_a_burst_for_several_wakes_each(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_sockets, "BURST_S", T)
    post.reader.start()
    about_to_wait = threading.Semaphore(0)
    ended = threading.Semaphore(0)
    for name in (b"a", b"b", b"c"):
        post.mail[name] = Mail()

    def live(mail: Mail) -> None:
        about_to_wait.release()
        post.reader.wait(mail, None)
        ended.release()

    threads = [threading.Thread(target=live, args=(mail,), daemon=True) for mail in post.mail.values()]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert about_to_wait.acquire(timeout=T)
    for name in (b"b", b"c", b"a"):
        post.push.send(name)
    for _ in threads:
        assert ended.acquire(timeout=T)
    assert sorted(post.everything) == [b"a", b"b", b"c"]


def test_what_comes_behind_an_error_in_dispatching_is_not_lost(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_sockets, "BURST_S", T)
    post.mail[b"a"] = mine = Mail(urgent=True)
    dispatch, interrupts = post.reader._dispatch, [KeyboardInterrupt()]

    def interrupted(frame: bytes) -> Waiter | None:
        if interrupts:
            raise interrupts.pop()
        return dispatch(frame)

    post.reader._dispatch = interrupted
    for i in range(3):
        post.push.send(b"a%d" % i)
    with pytest.raises(KeyboardInterrupt):
        post.reader.wait(mine)
    assert post.reader.wait(mine)
    assert mine.got == [b"a0", b"a1", b"a2"]


@pytest.mark.parametrize("who", ["background reader", "waiter"])
def test_a_message_that_nobody_can_take_is_shown_and_the_next_is_read(
    post: Post, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    shown: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    post.push.send(b"x nobody's")
    if who == "background reader":
        post.reader.start()
        post.push.send(b"ping")
        assert post.heard.wait(T)
    else:
        post.mail[b"a"] = mine = Mail(urgent=True)
        post.push.send(b"a")
        assert post.reader.wait(mine)
    assert [(each.exc_type, str(each.exc_value)) for each in shown] == [(KeyError, "b'x'")]


@pytest.mark.parametrize("error", [RuntimeError("of a hook of the user's"), SystemExit(3)])
def test_the_background_reader_lives_on_whatever_it_was_asked_to_do(
    post: Post, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    shown: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)

    def fail() -> None:
        raise error

    post.reader.start()
    post.reader.call_at(0, fail)
    post.reader.call_from_signal(fail)
    called = threading.Event()
    post.reader.call_at(0, called.set)
    assert called.wait(T)
    post.push.send(b"ping")
    assert post.heard.wait(T)
    assert [each.exc_value for each in shown] == [error, error]


class Ticks:
    """What the background reader sleeps on: notes for how long, and has the process do something
    meanwhile."""

    def __init__(self, reader: Reader, turns: list[int]) -> None:
        self.reader = reader
        self.turns = turns
        self.waits_ms: list[int | None] = []

    def register(self, fd: int, flags: int) -> None:
        """Nothing comes from there."""

    def poll(self, wait_ms: int | None) -> list[Any]:
        self.waits_ms.append(wait_ms)
        if self.turns:
            self.reader._turns += self.turns.pop(0)
        else:
            self.reader._closing = True
        return []


def ticks_of(reader: Reader, turns: list[int], *, reading: bool = False) -> list[int | None]:
    """Return for how long the background reader sleeps, while some thread leads and takes that many messages
    in each tick.

    Args:
        reading: whether each look finds it blocked, waiting for the next.
    """
    reader._poller = ticks = Ticks(reader, turns)  # type: ignore[assignment]
    reader._leader, reader._reading = object(), reading
    reader._run_background_reader()
    return ticks.waits_ms[1:]


def test_the_background_reader_looks_less_often_while_messages_come_quickly(post: Post) -> None:
    assert ticks_of(post.reader, [50] * 6)[-2:] == [_MAX_TICK_MS] * 2


def test_the_background_reader_looks_less_often_while_a_thread_reads(post: Post) -> None:
    assert ticks_of(post.reader, [1] * 6, reading=True)[-2:] == [_MAX_TICK_MS] * 2


def test_the_background_reader_looks_often_again_when_an_endpoint_takes_long(post: Post) -> None:
    assert ticks_of(post.reader, [50] * 5 + [1, 0])[-3:] == [_MAX_TICK_MS, _TICK_MS, _TICK_MS]


def test_the_background_reader_sleeps_for_good_once_nothing_has_come_for_a_while(post: Post) -> None:
    assert None in ticks_of(post.reader, [0] * 20, reading=True)


def test_somebody_reads_while_an_endpoint_that_came_in_a_burst_takes_long(post: Post) -> None:
    post.reader.start()
    post.mail[b"a"] = mine = Mail()
    for i in range(3000):
        post.push.send(b"a%d" % i)
        assert post.reader.wait(mine)
        mine.got.clear()
    post.push.send(b"ping")  # and nobody waits
    assert post.heard.wait(T)


def test_two_may_close_at_once(post: Post) -> None:
    """Whoever stops a mesh, and whoever hears of its end. A descriptor that is closed twice may be
    somebody else's by then.
    """
    errors: list[BaseException] = []

    def close() -> None:
        try:
            post.reader.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read_end, write_end = os.pipe()
    post.reader.close()
    assert not errors
    os.write(write_end, b"x")
    assert os.read(read_end, 1) == b"x"
    os.close(read_end)
    os.close(write_end)


def test_answers_to_pipelined_calls_gather_until_somebody_waits(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    post.reader.start()
    post.push.send(b"ping")
    assert post.heard.wait(T)  # connected
    monkeypatch.setattr(reader_module, "GATHERING_MS", 10**9)
    calls, gathers = itertools.count(reader_module.PIPELINED, reader_module.PIPELINED), threading.Event()
    post.reader.num_calls = lambda: next(calls)
    let_gather = post.reader._let_gather

    def let_gather_and_say() -> None:
        gathers.set()
        let_gather()

    monkeypatch.setattr(post.reader, "_let_gather", let_gather_and_say)
    post.mail[b"a"] = mine = Mail(urgent=True)
    post.push.send(b"ping")
    assert gathers.wait(T)
    post.push.send(b"ping")
    post.push.send(b"a")
    assert post.everything == [b"ping"] * 2, "nobody has read the third one"
    assert post.reader.wait(mine, time.monotonic() + T)
    assert post.everything == [b"ping"] * 3 + [b"a"]


def test_answers_to_single_calls_are_read_as_they_come(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "GATHERING_MS", 10**9)
    calls = itertools.count(step=reader_module.PIPELINED - 1)
    post.reader.num_calls = lambda: next(calls)
    post.reader.start()
    for _ in range(3):
        post.heard.clear()
        post.push.send(b"ping")
        assert post.heard.wait(T)
