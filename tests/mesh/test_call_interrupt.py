"""Ctrl-C while a call is waited for: KeyboardInterrupt here, and on the ranks at work; the actors live on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sample_actors import AsyncBusy, Busy

from monarch_nb._transport.context import call_context
from monarch_nb.actor import Actor, ActorError, Channel, ProcMesh, endpoint
from monarch_nb.actor.interrupt import send_interrupts


def press_when_ready(receiver: Any, num: int, future: Any) -> threading.Thread:
    """Send ourselves SIGINT once `num` ranks have said that they are at work, and the main thread waits
    for them.
    """
    pending = future._pending
    reader = pending.transport.reader

    def press() -> None:
        for _ in range(num):
            receiver.recv().get(60)
        while reader._leader is not pending and pending not in reader._followers:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def interrupted(start: Callable[[Any], Any], num: int = 4) -> str:
    """Wait for a call that never ends, press Ctrl-C, and return what the KeyboardInterrupt says."""
    port, receiver = Channel.open()
    future = start(port)
    presser = press_when_ready(receiver, num, future)
    with pytest.raises(KeyboardInterrupt) as caught:
        future.get(60)
    presser.join()
    return str(caught.value)


def test_sync_endpoints(procs: ProcMesh) -> None:
    actor: Any = procs.spawn("busy", Busy)
    assert "ranks 0-3 of busy.spin were interrupted" in interrupted(actor.spin.call)
    assert list(actor.count.call().get(30).values()) == [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["nap", "nap_beside"])
def test_async_endpoints(procs: ProcMesh, name: str) -> None:
    actor: Any = procs.spawn("async_busy", AsyncBusy)
    assert f"ranks 0-3 of async_busy.{name} were interrupted" in interrupted(getattr(actor, name).call)
    assert list(actor.count.call().get(30).values()) == [1, 1, 1, 1]


class Late(Actor):
    """Lets an interrupt look for `spin` after its thread has taken the call, and before it begins."""

    @endpoint
    def arm(self, port: Any) -> None:
        runner: Any = call_context.get().actor
        interrupt, handle, has_looked = runner.interrupt, runner._handle, threading.Event()

        def interrupt_and_tell(src: int, ref: int) -> bool:
            found = interrupt(src, ref)
            has_looked.set()
            return bool(found)

        def handle_late(message: Any) -> None:
            if message.name == b"spin":
                port.send(None)
                has_looked.wait(60)
            handle(message)

        runner.interrupt, runner._handle = interrupt_and_tell, handle_late

    @endpoint
    def spin(self) -> None:
        while True:
            pass

    @endpoint
    def count(self) -> int:
        return 1


def test_an_interrupt_finds_a_call_that_neither_waits_nor_runs_yet(procs: ProcMesh) -> None:
    actor: Any = procs.spawn("late", Late)
    port, receiver = Channel.open()
    actor.arm.call(port).get(30)
    future = actor.spin.call()
    for _ in range(4):
        receiver.recv().get(60)
    future.interrupt()
    with pytest.raises(ActorError, match="KeyboardInterrupt"):
        future.get(60)
    assert list(actor.count.call().get(30).values()) == [1, 1, 1, 1]


def sleep_after(ready: Any) -> None:
    ready.send(os.getpid())
    time.sleep(600)


def test_functions_on_the_main_thread(procs: ProcMesh) -> None:
    assert "were interrupted" in interrupted(lambda port: procs.execute(sleep_after, port))
    assert list(procs.execute(int, "7").get(30).values()) == [7, 7, 7, 7]


def test_calls_that_wait_are_taken_out(procs: ProcMesh) -> None:
    actor: Any = procs.spawn("queue", Busy)
    port, receiver = Channel.open()
    first = actor.spin.call(port)
    for _ in range(4):
        receiver.recv().get(60)
    second = actor.spin.call(port)
    send_interrupts(second._pending)
    with pytest.raises(ActorError, match="interrupted before it had begun"):
        second.get(30)
    assert not first.done()
    send_interrupts(first._pending)
    with pytest.raises(ActorError, match="KeyboardInterrupt"):
        first.get(30)
    assert list(actor.count.call().get(30).values()) == [1, 1, 1, 1]
