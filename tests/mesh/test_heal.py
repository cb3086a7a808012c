"""What was lost is put back, on one host and on two: processes, actors, process groups, whole hosts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from faults import kill
from own_meshes import own_mesh
from processes import wait_for_exit
from sample_actors import Counter, Faulty
from two_by_two import spawn_two_by_two

import monarch_nb
import monarch_nb.actor
from monarch_nb._client import session as sessions
from monarch_nb._protocol.programs import Status
from monarch_nb.actor import Actor, MeshFailure, ProcMesh, endpoint, this_host
from monarch_nb.actor.handle import placement_of
from monarch_nb.exceptions import ActorError, HealError, MeshError
from monarch_nb.job import ProcessJob
from monarch_nb.spmd import setup_torch_elastic_env

T = 60


pytestmark = pytest.mark.usefixtures("unhandled")


def init_gloo() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")


def all_reduced() -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return float(tensor)


class Waits(Actor):
    """Waits in a collective for the others."""

    @endpoint
    def reduce(self, without: int) -> float:
        return 0.0 if int(os.environ["RANK"]) == without else all_reduced()


def test_old_handles_work_again(doomed: ProcMesh) -> None:
    counter = doomed.spawn("counter", Counter, 5)
    corner = counter.slice(hosts=1, gpus=1)
    counter.increment.call().get(T)
    kill(doomed, 3)
    assert not doomed.healthy()
    report = doomed.heal()
    assert report.ranks == (3,)
    assert report.actors == {"counter": (3,)}
    assert doomed.healthy()
    assert list(counter.increment.call().get(T).values()) == [7, 7, 7, 6]
    assert corner.increment.call_one().get(T) == 7
    assert str(doomed.heal()) == "nothing was lost"


def test_who_heals_at_once_need_not_wait_for_the_loss_to_be_known() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    for _ in range(10):
        pids = list(procs.execute(os.getpid).get(T).values())
        os.kill(pids[0], signal.SIGKILL)
        assert wait_for_exit(pids[0])
        procs.heal()
        again = list(procs.execute(os.getpid).get(T).values())
        assert (again[0] != pids[0], again[1]) == (True, pids[1])
    procs.stop().get(T)


def test_all_ranks_at_once(doomed: ProcMesh) -> None:
    counter = doomed.spawn("counter", Counter, 0)
    kill(doomed, 0, 1, 2, 3)
    assert monarch_nb.heal_mesh(doomed) is doomed
    assert list(counter.increment.call().get(T).values()) == [1] * 4


def test_actors_on_slices_keep_their_points(doomed: ProcMesh) -> None:
    column = doomed.slice(gpus=1).spawn("column", Faulty)
    kill(doomed, 3)
    assert doomed.heal().actors == {"column": (3,)}
    with pytest.raises(ActorError) as caught:
        column.raise_on.call([1], "second of the column").get(T)
    assert caught.value.ranks == (1,)


def test_stopped_actors_stay_away(doomed: ProcMesh) -> None:
    counter = doomed.spawn("counter", Counter, 0)
    other = doomed.spawn("other", Counter, 0)
    counter.stop().get(T)
    kill(doomed, 2)
    assert doomed.heal().actors == {"other": (2,)}
    assert list(other.increment.call().get(T).values()) == [1] * 4


def test_an_actor_that_failed_is_made_again(doomed: ProcMesh, unhandled: list[MeshFailure]) -> None:
    faulty = doomed.spawn("unlucky", Faulty)
    faulty.raise_alone.broadcast()
    for n in range(4):  # all of them: one that fails after `heal` isn't in its report
        with pytest.raises(MeshError):
            faulty.flatten("rank").slice(rank=n).ok.call().get(T)
    report = doomed.heal()
    assert report.ranks == ()
    assert report.actors == {"unlucky": (0, 1, 2, 3)}
    assert faulty.ok.call().get(T).reduce("equal") == "ok"
    doomed._session.reports.flush()
    assert any("unlucky.raise_alone raised ValueError" in str(f) for f in unhandled)


def test_the_process_group_is_made_anew_and_peers_are_released(doomed: ProcMesh) -> None:
    setup_torch_elastic_env(doomed)
    doomed.execute(init_gloo).get(T)
    waits = doomed.spawn("waits", Waits)
    pending = waits.reduce.call(without=3)
    kill(doomed, 3)
    with pytest.raises(MeshError):
        pending.get(T)
    report = doomed.heal()
    assert "the process group has been made anew (gloo, 4 ranks)" in report.messages
    assert list(doomed.execute(all_reduced).get(T).values()) == [4.0] * 4
    assert list(waits.reduce.call(without=-1).get(T).values()) == [4.0] * 4
    variables = (
        doomed.flatten("rank").slice(rank=3).execute(lambda: os.environ["RANK"] + os.environ["WORLD_SIZE"])
    )
    assert variables.get(T).item() == "34"


def test_a_heal_does_not_make_a_group_with_ranks_that_run_functions(doomed: ProcMesh, tmp_path: Path) -> None:
    gate = str(tmp_path / "go")

    def hold() -> None:
        while not os.path.exists(gate):
            time.sleep(0.01)

    setup_torch_elastic_env(doomed)
    doomed.execute(init_gloo).get(T)
    held = doomed.flatten("rank").slice(rank=1).execute(hold)
    kill(doomed.flatten("rank").slice(rank=3), 0)
    report = doomed.heal()
    assert report.ranks == (3,)
    assert (
        "the process group is broken and was not made anew, since rank 1 still runs a function; "
        "end that, and heal again: %mesh interrupt, %mesh heal" in report.messages
    )
    free = doomed.flatten("rank").slice(rank=3)
    assert free.execute(os.getpid).get(T)  # it doesn't wait in a group that nobody comes to
    Path(gate).touch()
    held.get(T)
    assert doomed.heal().messages == ("the process group has been made anew (gloo, 4 ranks)",)
    assert list(doomed.execute(all_reduced).get(T).values()) == [4.0] * 4


def test_what_cannot_be_made_again_is_told_and_the_rest_is_there(doomed: ProcMesh, tmp_path: Any) -> None:
    flag = tmp_path / "flag"
    flag.write_text("")

    class Picky(Actor):
        def __init__(self) -> None:
            flag.read_text()

        @endpoint
        def ok(self) -> str:
            return "ok"

    picky = doomed.spawn("picky", Picky)
    counter = doomed.spawn("counter", Counter, 0)
    picky.ok.call().get(T)
    flag.unlink()
    kill(doomed, 1)
    with pytest.raises(
        HealError, match="actor 'picky' was not made again on rank 1: FileNotFoundError"
    ) as caught:
        doomed.heal()
    assert caught.value.report.ranks == (1,)
    assert list(counter.increment.call().get(T).values()) == [1] * 4
    flag.write_text("")
    assert doomed.heal().actors == {"picky": (1,)}
    assert picky.ok.call().get(T).reduce("equal") == "ok"


def test_nobody_waiting_the_hook_hears_once_with_all_that_is_known(
    doomed: ProcMesh, unhandled: list[MeshFailure]
) -> None:
    doomed.execute(print, "last words").get(T)
    pid = list(doomed.execute(os.getpid).get(T).values())[2]
    os.kill(pid, signal.SIGSEGV)
    while doomed.healthy():
        pass
    doomed.slice(hosts=0).execute(int).exception(T)  # news come in order: the hook has been called by now
    (failure,) = [f for f in unhandled if f.pid == pid]
    assert (failure.ranks, failure.signal, failure.exit_code) == ((2,), signal.SIGSEGV, None)
    assert failure.points == ({"hosts": 1, "gpus": 0},)
    assert "last words" in failure.last_lines
    assert "killed by SIGSEGV" in failure.report() and "mesh.heal()" in failure.report()


class Nanny(Actor):
    """Owns actors on a mesh and hears of their ends."""

    def __init__(self, procs: ProcMesh) -> None:
        self.child = procs.spawn("child", Counter, 0)
        self.heard: list[str] = []

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.heard.append(failure.report())
        return True

    @endpoint
    def failures(self) -> list[str]:
        return self.heard

    @endpoint
    async def count(self) -> list[int]:
        return list((await self.child.increment.call()).values())


def test_an_owner_is_asked_when_what_it_owns_is_lost(doomed: ProcMesh) -> None:
    nanny = doomed.slice(hosts=0, gpus=0).spawn("nanny", Nanny, doomed.slice(hosts=1))
    assert nanny.count.call_one().get(T) == [1, 1]
    kill(doomed, 3)
    failures: list[str] = []
    while not failures:
        failures = nanny.failures.call_one().get(T)
    assert len(failures) == 1
    assert "actor 'child' is lost on rank 3" in failures[0] and "killed by SIGKILL" in failures[0]
    doomed.heal()
    assert nanny.count.call_one().get(T) == [2, 1]


def test_a_lost_host_is_replaced() -> None:
    job = ProcessJob({"hosts": 2})
    hosts = job.state().hosts
    procs = spawn_two_by_two(hosts)
    counter = procs.spawn("counter", Counter, 0)
    counter.increment.call().get(T)
    rows = sessions.current().request(Status()).hosts
    victim = next(h for h in rows if h.index == placement_of(hosts).host_indices[1])
    os.kill(victim.pid, signal.SIGKILL)
    while procs.healthy():
        pass
    assert counter.slice(hosts=0).increment.call().get(T).reduce("equal") == 2
    report = procs.heal()
    assert (report.ranks, report.hosts) == ((2, 3), (victim.label,))
    assert list(counter.increment.call().get(T).values()) == [3, 3, 1, 1]
    procs.stop().get(T)
    job.kill()
    hosts.shutdown().get(T)


HANGS = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})
open({path!r}, "w").close()
os.read(os.pipe()[0], 1)
"""


def test_a_rank_that_hangs_in_a_cell_that_was_given_up_is_started_anew(tmp_path: Path) -> None:
    path = str(tmp_path / "hangs")
    os.mkfifo(path)
    with own_mesh("hangs", {"gpus": 2}) as mesh:
        counter: Any = mesh.spawn("counter", Counter, 0)
        counter.increment.call().get(T)
        run = mesh.submit(HANGS.format(path=path), ranks="1")
        with open(path):  # returns when the cell is there: from now on it hears no interrupt
            run.wait_for_number(T)
        for _ in range(4):  # each is the next step: interrupt, abort, give up
            run.interrupt()
        assert set(run.wait(T).unfinished) == {1}
        with pytest.raises(MeshError, match=r"rank 1 still hangs in cell #\d+, which was given up"):
            mesh.run("1")
        report = mesh.heal()
        assert report.ranks == (1,) and report.actors == {"counter": (1,)}
        assert report.messages[0] == "rank 1 hung in a cell that was given up"
        assert [mesh.run("rank").bundles[r]["text/plain"] for r in (0, 1)] == ["0", "1"]
        assert list(counter.increment.call().get(T).values()) == [2, 1]
        assert str(mesh.heal()) == "nothing was lost"
