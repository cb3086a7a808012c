"""Processes that user code forks off in a rank are the user's: they end when they're told to, and print,
whatever the rank did when they were forked off.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from own_meshes import own_mesh

from monarch_nb.mesh.core import Mesh

TERMINATED_EARLY = """
import logging, os, signal
from concurrent.futures import ThreadPoolExecutor

class Early(logging.Handler):
    def _at_fork_reinit(self):  # as early in the child as Python code can run
        os.kill(os.getpid(), signal.SIGTERM)
        super()._at_fork_reinit()

def fork():
    early = Early()
    child = os.fork()
    if child == 0:
        os._exit(7)
    return child

with ThreadPoolExecutor(1) as pool:
    child = FORK
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

FORKED_WHILE_ANOTHER_WRITES = """
import os, select, signal, sys, threading
inside, go = threading.Event(), threading.Event()

class Slow(str):
    def __contains__(self, part):  # the stream asks for it while it's locked
        inside.set()
        go.wait()
        return True

writer = threading.Thread(target=lambda: sys.stdout.write(Slow("from the rank\\n")))
writer.start()
inside.wait()
child = os.fork()
if child == 0:
    print("from the child", flush=True)
    os._exit(0)
go.set()
writer.join()
watched = os.pidfd_open(child)
if not select.select([watched], [], [], 30)[0]:
    os.kill(child, signal.SIGKILL)
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

BLOCKED = """
import os, signal
def is_blocked(): return signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
def in_child():
    child = os.fork()
    if child == 0:
        os._exit(is_blocked())
    return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
free = in_child(), is_blocked()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
blocked = in_child(), is_blocked()
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
free, blocked
"""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("children", {"procs": 2}) as started:
        yield started


def values(mesh: Mesh, source: str) -> list[str]:
    """Run a cell; return each rank's last value, as text."""
    bundles = mesh.run(source, timeout=60, quiet=True).bundles
    return [bundles[rank]["text/plain"] for rank in sorted(bundles)]


@pytest.mark.parametrize(
    "fork", ["fork()", "pool.submit(fork).result()"], ids=["main thread", "other thread"]
)
def test_a_child_ends_however_early_it_is_told_to(mesh: Mesh, fork: str) -> None:
    assert values(mesh, TERMINATED_EARLY.replace("FORK", fork)) == ["-15", "-15"]


def test_a_child_prints_though_another_thread_was_writing_when_it_was_forked_off(mesh: Mesh) -> None:
    assert values(mesh, FORKED_WHILE_ANOTHER_WRITES) == ["0", "0"]


def test_a_fork_leaves_the_users_mask_of_signals_as_it_was(mesh: Mesh) -> None:
    assert values(mesh, BLOCKED) == ["((False, False), (True, True))"] * 2
