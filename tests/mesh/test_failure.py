"""What a caller hears when something fails, on one host and on two."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
from faults import wait_for_news
from processes import wait_for_exit
from sample_actors import BadStart, Cleaner, Counter, Faulty, Owner, Stuck
from two_by_two import spawn_two_by_two

import monarch_nb.actor
from monarch_nb._transport.transport import Transport
from monarch_nb.actor import MeshFailure, ProcMesh, this_host
from monarch_nb.exceptions import ActorError, MeshStartError, SupervisionError

T = 30


def test_equal_failures_are_folded_and_good_results_kept(procs: ProcMesh) -> None:
    faulty = procs.spawn("faulty", Faulty)
    with pytest.raises(ActorError) as caught:
        faulty.raise_on.call([1, 2], "shape mismatch").get(T)
    error = caught.value
    assert error.ranks == (1, 2)
    assert [f.ranks for f in error.failures] == [(1, 2)]
    assert error.results == {0: 0, 3: 3}
    assert isinstance(error.exception, ValueError)
    text = str(error)
    assert "faulty.raise_on: 2 of 4 ranks failed" in text
    assert "ranks 1-2: ValueError: shape mismatch" in text
    assert "raise ValueError(text)" in text
    assert "monarch_nb/_rank" not in text


def test_distinct_failures_are_listed_first_one_marked(procs: ProcMesh) -> None:
    with pytest.raises(ActorError) as caught:
        procs.spawn("faulty", Faulty).raise_alone.call().get(T)
    failures = caught.value.failures
    assert sorted(f.ranks for f in failures) == [(0,), (1,), (2,), (3,)]
    assert [f.first for f in failures] == [True, False, False, False]


def test_a_failed_call_leaves_the_actor_alive(procs: ProcMesh) -> None:
    faulty = procs.spawn("faulty", Faulty)
    with pytest.raises(ActorError):
        faulty.raise_on.call([0], "no").get(T)
    assert faulty.ok.call().get(T).reduce("equal") == "ok"


def test_call_fails_without_waiting_for_the_others(doomed: ProcMesh) -> None:
    faulty = doomed.spawn("faulty", Faulty)
    sleepers = faulty.slice(gpus=1).sleep.call(600)
    with pytest.raises(ActorError) as caught:
        # Ranks 1 and 3 are busy for ten minutes.
        faulty.raise_on.call([0], "at once").get(T)
    assert caught.value.num_unfinished == 2
    assert not sleepers.done()


def test_return_values_that_cannot_be_pickled_are_named(procs: ProcMesh) -> None:
    with pytest.raises(ActorError, match=r"return value, key 'lock': cannot pickle"):
        procs.spawn("faulty", Faulty).unpicklable.call().get(T)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_rank_fails_its_pending_calls(doomed: ProcMesh, number: int) -> None:
    faulty = doomed.spawn("faulty", Faulty)
    pids = list(doomed.execute(os.getpid).get(T).values())
    pending = faulty.sleep.call(600)
    os.kill(pids[3], number)
    with pytest.raises(SupervisionError) as caught:
        pending.get(T)
    text = str(caught.value)
    assert "1 of 4 ranks is dead; 3 had not finished" in text
    assert f"killed by {signal.Signals(number).name} (pid {pids[3]} on" in text
    assert caught.value.failures[0].ranks == (3,)
    with pytest.raises(SupervisionError, match="killed by"):
        faulty.slice(hosts=1, gpus=1).ok.call_one().get(T)


@pytest.mark.parametrize("waits", [True, False], ids=["who waits reads", "the background reader reads"])
def test_an_answer_whose_rank_is_killed_before_it_is_taken(
    monkeypatch: pytest.MonkeyPatch, unhandled: object, waits: bool
) -> None:
    """A big answer lies in the rank's memory until it's mapped. That it can't be is no error of a thread's:
    pytest would fail for one.
    """
    rank = this_host().spawn_procs({"gpus": 1})
    rank.initialized.get(60)
    open_segment, killed = Transport.open_segment, threading.Event()

    def killed_first(self: Transport, owner: int, pid: int, fd: int, inode: int) -> Any:
        os.kill(pid, signal.SIGKILL)
        assert wait_for_exit(pid)
        killed.set()
        return open_segment(self, owner, pid, fd, inode)

    monkeypatch.setattr(Transport, "open_segment", killed_first)
    answer = rank.execute(numpy.ones, 3 << 20, numpy.uint8)
    assert waits or killed.wait(T)
    with pytest.raises(SupervisionError, match="SIGKILL"):
        answer.get(T)
    assert killed.is_set()
    rank.stop(grace_s=0.0).get(T)


def test_exit_code_and_last_lines_are_told(doomed: ProcMesh) -> None:
    faulty = doomed.spawn("faulty", Faulty)
    with pytest.raises(SupervisionError) as caught:
        faulty.slice(hosts=1, gpus=0).leave.call_one(3).get(T)
    assert "exited with code 3" in str(caught.value)
    assert "| last words" in str(caught.value)
    assert faulty.slice(hosts=0).ok.call().get(T).reduce("equal") == "ok"


def test_a_constructor_that_raises_is_heard(procs: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch_nb.actor, "unhandled_fault_hook", lambda failure: None)
    bad = procs.spawn("bad", BadStart)
    with pytest.raises(ActorError, match="RuntimeError: cannot construct"):
        bad.initialized.get(T)
    with pytest.raises(SupervisionError, match="cannot construct"):
        bad.anything.call().get(T)


def test_broadcast_failures_reach_the_hook_and_break_the_mesh(
    procs: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    heard: list[MeshFailure] = []
    notified = threading.Event()

    def hook(failure: MeshFailure) -> None:
        if failure.mesh == "unlucky":
            heard.append(failure)
            notified.set()

    monkeypatch.setattr(monarch_nb.actor, "unhandled_fault_hook", hook)
    faulty = procs.slice(hosts=0, gpus=0).spawn("unlucky", Faulty)
    faulty.raise_alone.broadcast()
    assert notified.wait(T)
    assert "unlucky.raise_alone raised ValueError" in heard[0].report()
    with pytest.raises(SupervisionError, match="the actor mesh 'unlucky' is dead"):
        faulty.ok.call()


def pids_of(mesh: ProcMesh) -> list[int]:
    return list(mesh.execute(os.getpid).get(T).values())


def test_a_death_that_only_forgotten_calls_would_tell_of_reaches_the_hook(
    doomed: ProcMesh, unhandled: list[MeshFailure]
) -> None:
    pid = pids_of(doomed)[3]
    doomed.spawn("never_asked", Stuck)
    doomed.execute(signal.pause)
    os.kill(pid, signal.SIGKILL)
    wait_for_news(doomed, pid)
    assert [f.pid for f in unhandled] == [pid]


def test_a_death_that_somebody_will_be_told_of_does_not(
    doomed: ProcMesh, unhandled: list[MeshFailure]
) -> None:
    pid = pids_of(doomed)[3]
    held = doomed.slice(hosts=1, gpus=1).execute(signal.pause)
    os.kill(pid, signal.SIGKILL)
    wait_for_news(doomed, pid)
    while not held.done():  # without anybody who waits
        pass
    with pytest.raises(SupervisionError, match=f"SIGKILL \\(pid {pid} "):
        held.get(T)
    assert not unhandled


def test_the_owner_is_asked_first(procs: ProcMesh) -> None:
    owner = procs.slice(hosts=1, gpus=0).spawn("owner", Owner)
    owner.start_and_break.call_one().get(T)
    found: list[str] = []
    for _ in range(1000):  # each a round trip: bounded, and no clock
        found = owner.heard.call_one().get(T)
        if found:
            break
    assert "is unique" in found[0]


def test_cleanup_runs_when_a_mesh_is_stopped(hosts: Any, tmp_path: Path) -> None:
    mesh = spawn_two_by_two(hosts)
    mesh.spawn("cleaner", Cleaner, str(tmp_path)).ready.call().get(T)
    mesh.stop().get(T)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "2", "3"]
    with pytest.raises(SupervisionError, match="is dead"):
        mesh.spawn("counter", Counter)


class ToldTwice(monarch_nb.actor.Actor):
    """Is told to end again while it ends, as `scancel` and its host do."""

    @monarch_nb.actor.endpoint
    def ready(self) -> None:
        """Say that it's there."""

    def __cleanup__(self, reason: Exception | None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_rank_that_is_told_to_end_twice_ends_without_a_traceback(doomed: ProcMesh) -> None:
    doomed.spawn("told", ToldTwice).ready.call().get(T)
    with pytest.raises(SupervisionError, match="exited with code 0") as caught:
        doomed.execute(lambda: os.kill(os.getpid(), signal.SIGTERM)).get(T)
    assert "SystemExit" not in str(caught.value)


def test_a_bootstrap_that_raises_is_told_with_its_traceback(hosts: Any) -> None:
    def broken() -> None:
        raise RuntimeError("no disk")

    mesh = hosts.spawn_procs({"gpus": 2}, bootstrap=broken)
    with pytest.raises(MeshStartError, match="RuntimeError: no disk"):
        mesh.initialized.get(T)


def test_actor_error_can_be_pickled(procs: ProcMesh) -> None:
    import pickle

    with pytest.raises(ActorError) as caught:
        procs.spawn("faulty", Faulty).raise_on.call([1], "text").get(T)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.results == caught.value.results
