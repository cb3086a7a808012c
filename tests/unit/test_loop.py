"""The host process' loop: while it stands still itself, no time goes by for those whom it judges."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

from monarch_nb._host.loop import Loop

STALLED_S = 2.5
CODE = """
import os, sys, time
import zmq
from monarch_nb._host.loop import Loop

context = zmq.Context()
mail, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
mail.bind("inproc://mail"); sender.connect("inproc://mail")
loop = Loop()
heard = []

def took():
    heard.append(mail.recv())

def look():
    print(f"{loop.clock():.3f} {time.monotonic():.3f} {len(heard)}", flush=True)
    heard.clear()
    loop.call_later(0.05, look)

def type_something():
    data = os.read(0, 100)
    if data == b"stay\\n":
        print("stays", flush=True)
        sender.send(b"while it stays")
        time.sleep(1.5)
    elif not data:
        loop.stop()

loop.watch_socket(mail, took)
loop.watch_file(0, type_something)
look()
loop.run()
mail.close(0); sender.close(0); context.term()
"""


class Program:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def settle(self) -> None:
        """Wait until the loop runs: what is written first comes before."""
        for _ in range(3):
            self.line()

    def times(self) -> tuple[float, float]:
        clock, real, _ = self.line().split()
        return float(clock), float(real)

    def close(self) -> None:
        self.process.communicate()


def test_the_clock_stands_still_while_the_process_is_stopped() -> None:
    program = Program()
    program.settle()
    clock, real = program.times()
    os.kill(program.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, program.process.pid, os.WSTOPPED)
    time.sleep(STALLED_S)
    os.kill(program.process.pid, signal.SIGCONT)
    while program.times()[1] < real + STALLED_S:
        pass
    later_clock, later = program.times()
    assert later - real >= STALLED_S
    assert (later - real) - (later_clock - clock) >= STALLED_S - 0.5, "the clock went on"
    again_clock, again = program.times()
    assert abs((again - later) - (again_clock - later_clock)) < 0.01, "and now it goes"
    program.close()


def test_the_clock_stands_still_while_a_callback_takes_long() -> None:
    program = Program()
    program.settle()
    clock, real = program.times()
    assert program.process.stdin is not None
    program.process.stdin.write("stay\n")
    program.process.stdin.flush()
    while program.line() != "stays\n":
        pass
    later_clock, later, num_heard = map(float, program.line().split())
    assert (later - real) - (later_clock - clock) >= 1.4
    assert num_heard == 1, "a timer ran before what had arrived was read"
    program.close()


def test_a_number_of_a_file_that_is_used_again_in_the_same_round() -> None:
    """What the kernel has said of a file isn't taken for news of the next one of its number."""
    loop = Loop()
    (first, to_first), (second, to_second), (successor, to_successor) = os.pipe(), os.pipe(), os.pipe()
    was_ready = []

    def replace_second() -> None:
        os.read(first, 1)
        loop.forget_file(second)
        os.dup2(successor, second)
        loop.watch_file(second, hear)
        loop.call_soon(lambda: os.write(to_successor, b"x"))

    def hear() -> None:
        was_ready.append(bool(select.select([second], [], [], 0)[0]))
        loop.stop()

    loop.watch_file(first, replace_second)
    loop.watch_file(second, lambda: was_ready.append(False))
    os.write(to_first, b"x")
    os.write(to_second, b"x")
    loop.run()
    assert was_ready == [True]
    for fd in (first, to_first, second, to_second, successor, to_successor):
        os.close(fd)
