"""Futures of calls in `concurrent.futures.as_completed` and `wait`, beside those of other executors."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from pathlib import Path
from typing import Any

import pytest
from sample_actors import Counter, Faulty, Holder

from monarch_nb.actor import Future, ProcMesh
from monarch_nb.exceptions import ActorError, SupervisionError

T = 30


def held(procs: ProcMesh, file: Path) -> Future[Any]:
    """Return a call that is answered once the file is there."""
    return procs.slice(hosts=0, gpus=0).spawn("holder", Holder).hold.call(str(file))


def test_they_come_as_they_are_done(procs: ProcMesh, tmp_path: Path) -> None:
    late = held(procs, tmp_path / "go")
    counter = procs.slice(hosts=1, gpus=1).spawn("counter", Counter)
    early = [counter.increment.call_one() for _ in range(20)]
    done = as_completed([late, *early, early[0]], timeout=T)
    first = [next(done) for _ in early]
    assert set(first) == set(early) and not late.done() and late.running()
    assert sorted(future.result() for future in first) == list(range(1, 21))
    (tmp_path / "go").touch()
    assert list(done) == [late] and late.result().reduce("equal") is None


def test_those_that_are_done_come_at_once(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    futures = [counter.increment.call() for _ in range(3)]
    assert [future.get(T).reduce("equal") for future in futures] == [1, 2, 3]
    assert set(as_completed(futures, timeout=0)) == set(futures)
    assert wait(futures, timeout=0) == (set(futures), set())
    assert not any(future.cancelled() for future in futures)


def test_a_time_out_consumes_nothing(procs: ProcMesh, tmp_path: Path) -> None:
    late = held(procs, tmp_path / "go")
    with pytest.raises(TimeoutError, match=r"1 \(of 1\) futures unfinished"):
        list(as_completed([late], timeout=0.01))
    assert wait([late], timeout=0.01) == (set(), {late})
    (tmp_path / "go").touch()
    assert wait([late], timeout=T) == ({late}, set())
    assert late.get().reduce("equal") is None


def test_threads_futures_stand_beside_them(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    go = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        futures: list[Any] = [pool.submit(go.wait, T)]
        for n in range(50):
            futures += [counter.increment.call(0), pool.submit(pow, n, 2)]
        done = as_completed(futures, timeout=T)
        found = [next(done) for _ in range(100)]
        assert not futures[0].done()
        go.set()
        assert [*found, *done] == [*found, futures[0]] and set(found) == set(futures[1:])
        assert wait(futures, timeout=T, return_when=ALL_COMPLETED).not_done == set()


def test_failures_are_raised_by_who_reads_them(procs: ProcMesh) -> None:
    faulty, counter = procs.spawn("faulty", Faulty), procs.spawn("counter", Counter)
    bad, good = faulty.raise_on.call([0], "no"), counter.increment.call()
    found = {future: future.exception() for future in as_completed([bad, good], timeout=T)}
    assert isinstance(found[bad], ActorError) and found[good] is None
    with pytest.raises(ActorError, match="no"):
        bad.result()


def test_the_first_one_and_the_first_failure_end_a_wait(procs: ProcMesh, tmp_path: Path) -> None:
    late, counter = held(procs, tmp_path / "go"), procs.spawn("counter", Counter)
    good = counter.slice(hosts=1).increment.call()
    assert wait([late, good], timeout=T, return_when=FIRST_COMPLETED) == ({good}, {late})
    bad = procs.slice(hosts=1).spawn("faulty", Faulty).raise_on.call([0], "no")
    done, rest = wait([late, good, bad], timeout=T, return_when=FIRST_EXCEPTION)
    assert bad in done and rest == {late}
    assert wait([late, bad], timeout=T, return_when=FIRST_EXCEPTION).not_done == {late}, "it's known"
    (tmp_path / "go").touch()
    assert wait([late], timeout=T).done == {late}


def test_a_rank_that_dies_is_a_failure(doomed: ProcMesh, unhandled: list[Any]) -> None:
    dying = doomed.spawn("faulty", Faulty).leave.call(3)
    with ThreadPoolExecutor(1) as pool:
        found = list(as_completed([dying, pool.submit(int)], timeout=T))
    assert len(found) == 2 and isinstance(dying.exception(), SupervisionError)


def test_threads_wait_for_the_same_futures(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(50):
            futures = [counter.increment.call() for _ in range(3)]
            waits = [pool.submit(lambda each: set(as_completed(each, T)), futures) for _ in range(4)]
            assert all(each.result(T) == set(futures) for each in waits)


def test_a_future_that_nobody_waits_for_so_has_nothing_of_it(procs: ProcMesh) -> None:
    future = procs.spawn("counter", Counter).increment.call()
    future.get(T)
    assert not hasattr(future, "_awaited")
    assert list(as_completed([future])) == [future] and future._waiters == []
    del future
    gc.collect()
