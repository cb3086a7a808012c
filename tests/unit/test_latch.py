"""A latch between real processes: opened, given up, and held by one that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from monarch_nb._wire.latch import Latch, Where, wait_for

WAITS = """
import sys
from monarch_nb._wire.latch import Where, wait_for
print("here", flush=True)
print(wait_for(Where(*map(int, sys.argv[1:]))), flush=True)
"""
HOLDS = """
import os, sys
from monarch_nb._wire.latch import Latch
latch = Latch()
child = os.fork()
if not child:
    sys.stdin.read()  # a child that has inherited the pipe
    os._exit(0)
print(*latch.where, child, flush=True)
sys.stdin.read()
"""


def waiter(where: Where) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", WAITS, *map(str, where)], stdout=subprocess.PIPE, text=True)
    assert line(process) == "here"
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_all_go_through_once_it_is_open() -> None:
    latch = Latch()
    first, second = waiter(latch.where), waiter(latch.where)
    latch.open()
    assert [line(first), line(second)] == ["True", "True"]
    assert wait_for(latch.where)  # those who come later, too
    latch.close()
    for process in (first, second):
        process.communicate()


def test_one_that_was_used_before_is_closed_again() -> None:
    latch = Latch()
    latch.open()
    latch.reset()
    process = waiter(latch.where)
    latch.close()
    assert line(process) == "False"
    process.communicate()


def test_nobody_waits_for_what_was_given_up() -> None:
    latch = Latch()
    where = latch.where
    latch.close()
    assert not wait_for(where)
    again = Latch()  # has the same descriptors
    assert not wait_for(where)
    again.close()


def test_the_holder_dies_and_a_child_of_it_lives() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    *where, child = map(int, line(holder).split())
    process = waiter(Where(*where))
    try:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()  # until then its descriptors can be opened
        assert line(process) == "False"
    finally:
        os.kill(child, signal.SIGKILL)
        end(process)
        end(holder)
