"""Many small tasks: spread evenly, in order or as they're done, given to others when a rank dies; and what
else takes an executor.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import CancelledError, as_completed
from pathlib import Path

import pytest
from own_meshes import own_mesh
from waiting import wait_until

from monarch_nb import mesh as meshes
from monarch_nb.exceptions import ActorError, CannotPickle, SupervisionError
from monarch_nb.mesh import Mesh


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("mapping", {"gpus": 3}) as found:
        yield found


def square(x: int) -> int:
    return x * x


def whose(_: int) -> int:
    return os.getpid()


def test_results_are_in_order_or_as_they_come(mesh: Mesh, tmp_path: Path) -> None:
    assert mesh.map(square, range(50)).get() == [x * x for x in range(50)]
    gate = tmp_path / "gate"

    def held(x: int) -> int:
        while x == 0 and not gate.exists():
            time.sleep(0.001)
        return x

    found = []
    for value in mesh.map(held, range(20), ordered=False):
        found.append(value)
        if len(found) == 19:
            gate.touch()
    assert found[-1] == 0 and sorted(found) == [*range(20)]
    assert mesh.map(square, []).get() == []


def test_items_are_taken_as_ranks_get_free(mesh: Mesh) -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        x = 0
        while True:
            taken.append(x)
            yield x
            x += 1

    run = mesh.map(square, endless(), ranks="0-1")
    assert [next(run) for _ in range(5)] == [0, 1, 4, 9, 16]
    run.cancel()
    assert repr(run).endswith(", given up>")
    with pytest.raises(CancelledError, match="the map of square was cancelled"):
        list(run)
    num = len(taken)
    assert {*mesh.map(whose, range(30), ranks="1-2").get()} <= {
        *mesh.part("1-2").execute(os.getpid).get().values()
    }
    assert len(taken) <= num + 1


def test_an_error_names_the_item_and_its_rank(mesh: Mesh) -> None:
    def picky(x: int) -> int:
        if x == 7:
            raise ValueError("not seven")
        return x

    with pytest.raises(
        ActorError, match=r"picky, item 7: failed on rank [0-2]\n(?s:.*)ValueError: not seven"
    ) as raised:
        mesh.map(picky, range(100)).get()
    assert isinstance(raised.value.exception, ValueError) and len(raised.value.failures) == 1
    found = mesh.map(picky, range(10), return_exceptions=True).get()
    assert isinstance(found[7], ActorError) and [*found[:7], *found[8:]] == [*range(7), 8, 9]


def test_a_generator_that_raises_is_told_after_what_it_gave(mesh: Mesh) -> None:
    def broken() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    run = mesh.map(square, broken())
    assert [next(run), next(run)] == [1, 4]
    with pytest.raises(OSError, match="the disk is gone"):
        next(run)
    with pytest.raises(StopIteration):
        next(run)


def test_what_cant_be_sent_is_said(mesh: Mesh) -> None:
    with pytest.raises(CannotPickle, match="lock"):
        mesh.map(square, [1, threading.Lock(), 3]).get()
    lock = threading.Lock()
    with pytest.raises(CannotPickle, match="lock"):
        mesh.map(lambda x: (x, lock), [1])
    assert mesh.map(square, [3]).get() == [9]


def test_what_a_dead_rank_had_is_done_by_another(tmp_path: Path) -> None:
    mark = tmp_path / "died"

    def deadly(x: int) -> int:
        if x == 5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x + 1

    def killer(x: int) -> int:
        if x == 2:
            os._exit(9)
        return x

    with own_mesh("mortal", {"gpus": 4}) as mortal:
        assert mortal.map(deadly, range(40)).get() == [*range(1, 41)]
        assert len(mortal.living_ranks()) == 3
        mortal.heal()
        with pytest.raises(
            SupervisionError, match="killer, item 2: the rank that ran it has died, 2 times in total"
        ):
            mortal.map(killer, range(10), retries=1).get()
        with pytest.raises(SupervisionError, match=r"no rank is left|has died"):
            mortal.map(killer, [2] * 10, retries=10).get()


def test_an_executor_and_joblib_go_on_when_a_rank_dies(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib", reason="joblib isn't installed")
    mark = tmp_path / "died"

    def deadly(x: int, name: str) -> int:
        mine = mark.with_name(name)
        if x == 5 and not mine.exists():
            mine.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x + 1

    with own_mesh("mortal-too", {"gpus": 3}) as mortal:
        with mortal.executor() as executor:
            futures = [executor.submit(deadly, x, "executor") for x in range(20)]
            assert [future.result(60) for future in futures] == [*range(1, 21)]
        assert len(mortal.living_ranks()) == 2
        with joblib.parallel_config(backend="monarch_nb"):
            found = joblib.Parallel(n_jobs=-1)(joblib.delayed(deadly)(x, "joblib") for x in range(20))
        assert found == [*range(1, 21)] and len(mortal.living_ranks()) == 1


LATE = """
import sys
from monarch_nb import mesh as meshes
mesh = meshes.start("late-joblib", {"gpus": 2})
assert "joblib" not in sys.modules, "nothing of ours imports it"
import joblib
with joblib.parallel_config(backend="monarch_nb"):
    print(joblib.Parallel(n_jobs=2)(joblib.delayed(divmod)(x, 2) for x in range(4)))
print(type(joblib.__loader__).__name__, joblib.__spec__.loader is joblib.__loader__)
mesh.stop().get(30)
"""


def test_joblib_that_is_imported_after_the_mesh_was_started_knows_it(tmp_path: Path) -> None:
    pytest.importorskip("joblib", reason="joblib isn't installed")
    (tmp_path / "late.py").write_text(LATE)
    ran = subprocess.run([sys.executable, tmp_path / "late.py"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["[(0, 0), (0, 1), (1, 0), (1, 1)]", "SourceFileLoader True"]


def test_ctrl_c_ends_it(mesh: Mesh, tmp_path: Path) -> None:
    def slow(x: int) -> None:
        (tmp_path / f"on{x}").touch()
        while True:
            time.sleep(0.01)

    run = mesh.map(slow, range(9))

    def waits_for_result() -> bool:
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        names = [each.name for each in traceback.extract_stack(frame)]
        return "__next__" in names and names[-1] == "wait"

    def press() -> None:
        wait_until(lambda: len(list(tmp_path.glob("on*"))) == 3, "three at work")
        wait_until(waits_for_result, "the main thread waits for the first result")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presser = threading.Thread(target=press)

    def start_and_wait() -> None:
        presser.start()
        run.get()

    with pytest.raises(KeyboardInterrupt):
        start_and_wait()
    presser.join()
    assert mesh.map(square, [2]).get() == [4]  # ranks are free again
    assert len(list(tmp_path.glob("on*"))) == 3


def test_it_is_an_executor(mesh: Mesh) -> None:
    with mesh.executor() as pool:
        futures = {pool.submit(square, x): x for x in range(20)}
        assert {futures[future]: future.result() for future in as_completed(futures)} == {
            x: x * x for x in range(20)
        }
        assert list(pool.map(pow, [2, 3], [5, 2])) == [32, 9]
        failed = pool.submit(int, "x")
        with pytest.raises(ValueError, match="invalid literal") as raised:
            failed.result()
        assert isinstance(raised.value.__cause__, ActorError)
        assert pool.submit(dict, a=1).result() == {"a": 1}
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(square, 1)


def test_executor_gives_up_what_waits(mesh: Mesh, tmp_path: Path) -> None:
    def held(gate: str) -> bool:
        while not os.path.exists(gate):
            time.sleep(0.001)
        return True

    pool = mesh.executor("0")
    first, second = pool.submit(held, str(tmp_path / "gate")), pool.submit(square, 2)
    wait_until(first.running, "the first one runs")
    pool.shutdown(wait=False, cancel_futures=True)
    (tmp_path / "gate").touch()
    assert first.result(60) is True and second.cancelled()


def test_uneven_tasks_are_spread_evenly(mesh: Mesh) -> None:
    """Of 100 tasks of uneven length no rank gets all the long ones: nobody waits while there's work."""

    def busy(length_s: float) -> tuple[int, float]:
        time.sleep(length_s)
        return whose(0), length_s

    lengths = [0.02 * (3 if x % 10 == 0 else 1 / 3) for x in range(60)]
    done: dict[int, float] = {}
    for rank, length_s in mesh.map(busy, lengths):
        done[rank] = done.get(rank, 0.0) + length_s
    assert len(done) == 3 and max(done.values()) - min(done.values()) <= 2 * max(lengths)


def test_joblib_runs_on_ranks(mesh: Mesh) -> None:
    joblib = pytest.importorskip("joblib", reason="joblib isn't installed")
    import monarch_nb.mesh.tasks.joblib  # noqa: F401 - registers the backend

    meshes.attach("mapping")
    with joblib.parallel_config(backend="monarch_nb"):
        assert joblib.Parallel(n_jobs=-1)(joblib.delayed(square)(x) for x in range(30)) == [
            x * x for x in range(30)
        ]
        pids = set(joblib.Parallel(n_jobs=2)(joblib.delayed(os.getpid)() for _ in range(10)))
        assert os.getpid() not in pids and 1 <= len(pids) <= 2
        with pytest.raises(ZeroDivisionError):
            joblib.Parallel()(joblib.delayed(divmod)(1, x) for x in (1, 0, 2))
        assert joblib.Parallel(return_as="generator")(joblib.delayed(square)(x) for x in [3]).__next__() == 9
    assert "joblib" in sys.modules
