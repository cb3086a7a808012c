"""Many calls with mixed adverbs from several threads: order kept, nothing leaks."""

from __future__ import annotations

import gc
import os
import random
import threading
from pathlib import Path

import pytest
from sample_actors import Actor, Where
from two_by_two import spawn_two_by_two

from monarch_nb._client import session
from monarch_nb.actor import HostMesh, endpoint

T = 60
NUM_CALLS = int(os.environ.get("MONARCH_NB_SOAK_CALLS", "8000"))
NUM_THREADS = 4


class Ledger(Actor):
    """Notes each sender's numbers, and whether they came in order."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.out_of_order: list[tuple[int, int, int]] = []
        self.num = 0

    @endpoint
    def note(self, sender: int, number: int) -> int:
        if number <= self.last.get(sender, -1):
            self.out_of_order.append((sender, self.last[sender], number))
        self.last[sender] = number
        self.num += 1
        return number

    @endpoint
    def report(self) -> tuple[int, list[tuple[int, int, int]], dict[int, int]]:
        return self.num, self.out_of_order, self.last


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def send(ledger: Ledger, sender: int, count: int, wrong: list[str]) -> None:
    """Send numbers to all ranks and to single ones, by every adverb, from one thread."""
    rng = random.Random(sender)
    waiting = []
    for number in range(count):
        kind = rng.randrange(5)
        if kind == 0:
            ledger.note.broadcast(sender, number)
        elif kind == 1:
            waiting.append((number, ledger.note.call(sender, number)))
        elif kind == 2:
            if list(ledger.note.call(sender, number).get(T).values()) != [number] * 4:
                wrong.append(f"call {number}")
        elif kind == 3:
            for answer in ledger.note.stream(sender, number):
                if answer.get(T) != number:
                    wrong.append(f"stream {number}")
        else:
            ledger.note.scatter([(sender, number)] * 4).get(T)
        if len(waiting) > 50:
            for expected, future in waiting:
                if future.get(T).reduce("equal") != expected:
                    wrong.append(f"late call {expected}")
            waiting.clear()
    for _, future in waiting:
        future.get(T)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_soak(hosts: HostMesh) -> None:
    transport = session.current().transport
    procs = spawn_two_by_two(hosts)
    procs.initialized.get(T)
    procs.spawn("where", Where).pid.call().get(T)
    files, threads, pending = open_files(), threading.active_count(), transport.num_pending
    ledger = procs.spawn("ledger", Ledger)
    wrong: list[str] = []
    per_thread = NUM_CALLS // NUM_THREADS
    senders = [threading.Thread(target=send, args=(ledger, i, per_thread, wrong)) for i in range(NUM_THREADS)]
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join()
    assert not wrong
    for num, out_of_order, last in ledger.report.call().get(T).values():
        assert out_of_order == []
        assert num == per_thread * NUM_THREADS
        assert last == dict.fromkeys(range(NUM_THREADS), per_thread - 1)
    rank_files = procs.execute(lambda: (len(os.listdir("/proc/self/fd")), threading.active_count())).get(T)
    gc.collect()
    assert transport.num_pending == pending
    assert threading.active_count() <= threads
    assert open_files() <= files + 2
    assert transport.pool.num_used == 0
    assert all(n < 60 and t < 12 for n, t in rank_files.values()), rank_files
    procs.stop().get(T)
