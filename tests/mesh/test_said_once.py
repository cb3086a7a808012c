"""What goes wrong is said once: by an exception, or on stderr where nobody waits; without frames of this
package.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import kill
from own_meshes import own_mesh
from sample_actors import BadStart, Counter, Faulty
from waiting import wait_until

import monarch_nb
from monarch_nb._client import reports as client_reports
from monarch_nb._transport.pending import Pending
from monarch_nb._transport.transport import Transport
from monarch_nb.actor import ProcMesh
from monarch_nb.exceptions import (
    ActorError,
    DeviceMeshError,
    MeshUsageError,
    SupervisionError,
    WrongArguments,
)
from monarch_nb.mesh import CellError

PRELOAD = "none"
T = 60


def test_a_constructor_that_fails_is_told_with_one_traceback(
    procs: ProcMesh, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_reports, "WINDOW_S", 10 * T)  # ranks may lag; here they are told together
    bad = procs.spawn("unbuilt", BadStart)
    wait_until(
        lambda: bad._state.failure is not None and len(bad._state.failure.ranks) == 4,
        "all four ranks have told",
    )
    procs._session.reports.flush()
    output = capsys.readouterr().err
    assert (
        output.count("Traceback") == 1
        and "actor 'unbuilt' was not constructed on ranks 0-3: RuntimeError: cannot construct" in output
    )
    assert "monarch_nb/_" not in output
    for _ in range(2):
        with pytest.raises(SupervisionError) as caught:
            bad.anything.call().get(T)
        first, *more = str(caught.value).splitlines()
        assert (
            first.startswith(
                "unbuilt.anything: actor 'unbuilt' was not constructed on ranks 0-3: RuntimeError: "
                "cannot construct"
            )
            and not more
        )
        assert "raise RuntimeError" in caught.value.failures[0].traceback, (
            "a program can still look at all of it"
        )
    with pytest.raises(ActorError, match="was not constructed") as asked:
        bad.initialized.get(T)
    assert "Traceback" not in str(asked.value)
    procs._session.reports.flush()
    assert not capsys.readouterr().err


def test_who_calls_at_once_is_told_by_the_exception_only(
    procs: ProcMesh, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_reports, "WINDOW_S", 600.0)  # "at once", however busy the machine is
    bad = procs.spawn("unbuilt_at_once", BadStart)
    with pytest.raises(SupervisionError) as caught:
        bad.anything.call().get(T)
    assert str(caught.value).count("Traceback") == 1
    wait_until(
        lambda: bad._state.failure is not None and len(bad._state.failure.ranks) == 4,
        "all four ranks have told",
    )
    procs._session.reports.flush()
    assert not capsys.readouterr().err


def test_who_keeps_no_handle_is_told_by_the_exception_only(
    procs: ProcMesh, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_reports, "WINDOW_S", 600.0)
    states = procs._session.actor_states
    known = set(states)
    with pytest.raises(ActorError, match="was not constructed") as caught:
        procs.spawn("unbuilt_unkept", BadStart).initialized.get(T)
    assert str(caught.value).count("Traceback") == 1
    del caught
    gc.collect()  # the traceback was the last to hold the handle
    wait_until(
        lambda: any(len(states[x].described) == 4 for x in set(states) - known), "all four ranks have told"
    )
    procs._session.reports.flush()
    assert not capsys.readouterr().err


def test_what_a_rank_tells_later_of_actors_without_a_handle_is_not_told_again(
    procs: ProcMesh, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_reports, "WINDOW_S", 600.0)
    bad = procs.spawn("unbuilt_dropped", BadStart)
    *early, late = wait_until(
        lambda: len(bad._state.described) == 4 and bad._state.described, "all four ranks have told"
    )
    procs._session.reports.flush()
    capsys.readouterr()
    reports, no_handle = client_reports.FailureReports(procs._session), bad._actor_id + 1
    for failure in early:
        reports.actor_failed(no_handle, failure)
    reports.flush()
    assert capsys.readouterr().err.count("Traceback") == 1
    reports.actor_failed(no_handle, late)
    reports.flush()
    assert not capsys.readouterr().err


def test_a_failure_that_is_told_before_spawn_has_returned_counts(
    procs: ProcMesh, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_reports, "WINDOW_S", 600.0)
    reports, post_all = procs._session.reports, Transport.post_all

    def post_and_hear(*args: Any, **kwargs: Any) -> Any:
        known = set(reports._actors)
        not_sent = post_all(*args, **kwargs)
        wait_until(
            lambda: any(len(reports._actors[x]) == 4 for x in set(reports._actors) - known), "four failures"
        )
        return not_sent

    with monkeypatch.context() as patch:
        patch.setattr(Transport, "post_all", post_and_hear)
        bad = procs.spawn("unbuilt_before_spawn_returns", BadStart)
    assert bad._state.failure is not None
    assert len(bad._state.failure.ranks) == 4
    reports.flush()
    assert "ranks 0-3: RuntimeError: cannot construct" in capsys.readouterr().err


def test_a_dropped_call_that_failed_says_so_once(procs: ProcMesh, capsys: pytest.CaptureFixture[str]) -> None:
    faulty = procs.spawn("dropped", Faulty)
    reports = procs._session.reports
    reports.begin_cell()
    for rank in range(5):
        faulty.raise_on.call([1, 2], f"lost {rank}")  # gone before its answer has come
    faulty.ok.call().get(T)
    reports.flush()
    output = capsys.readouterr().err
    assert output.count("a call has failed, and its answer was not read") == 1
    assert "dropped.raise_on: 2 of 4 ranks failed" in output and "ranks 1-2: ValueError: lost" in output


def test_a_future_that_is_dropped_after_its_answer_says_so(
    procs: ProcMesh, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty = procs.spawn("dropped_later", Faulty)
    reports = procs._session.reports
    reports.begin_cell()
    held = faulty.slice(hosts=0, gpus=0).raise_alone.call_one()
    wait_until(held.done, "the call has its answer")
    reports.flush()
    assert not capsys.readouterr().err
    del held
    gc.collect()
    reports.flush()
    output = capsys.readouterr().err
    assert "dropped_later.raise_alone: rank 0 failed" in output and "ValueError: rank 0 is unique" in output


@pytest.mark.parametrize("how", ["call", "call_one", "execute"])
def test_an_answer_that_comes_while_the_call_is_sent_counts(
    procs: ProcMesh, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    faulty = procs.spawn("answered_early", Faulty)
    one, reports = procs.slice(hosts=0, gpus=0), procs._session.reports
    reports.begin_cell()

    def send_and_hear(send: Callable[..., None]) -> Callable[..., None]:
        def wrapped(pending: Pending, *args: Any, **kwargs: Any) -> None:
            send(pending, *args, **kwargs)
            pending.transport.reader.ensure_reading()
            wait_until(lambda: pending.ready, "the answer")

        return wrapped

    with monkeypatch.context() as patch:
        for place in ("endpoint.call", "endpoint.call_one", "proc_mesh.call"):
            module, name = place.split(".")
            functions = sys.modules[f"monarch_nb.actor.{module}"]
            patch.setattr(functions, name, send_and_hear(getattr(functions, name)))
        if how == "execute":
            one.execute(int, "rank 0 is unique")
        else:
            getattr(faulty.slice(hosts=0, gpus=0).raise_alone, how)()
    gc.collect()
    reports.flush()
    output = capsys.readouterr().err
    assert "a call has failed, and its answer was not read" in output and "rank 0 is unique" in output


def test_futures_that_were_read_or_went_well_say_nothing(
    procs: ProcMesh, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty = procs.spawn("read", Faulty)
    faulty.ok.call()
    assert isinstance(faulty.raise_alone.call().exception(T), ActorError)
    with pytest.raises(ActorError):
        faulty.raise_alone.call().then(len).get(T)
    future = faulty.raise_alone.call()
    derived = future.then(len)
    del derived
    with pytest.raises(ActorError):
        future.get(T)
    del future
    gc.collect()
    procs._session.reports.flush()
    assert not procs._transport.unread
    assert not capsys.readouterr().err


def test_execute_refuses_dead_ranks_at_once_and_the_usual_loop_heals(
    doomed: ProcMesh, tmp_path: Path
) -> None:
    kill(doomed, 2)
    trace = tmp_path / "called"
    with pytest.raises(DeviceMeshError, match=r"1 of 4 ranks is dead; nothing was called(.|\n)*mesh.heal"):
        doomed.execute(trace.touch)
    assert doomed.slice(hosts=0).execute(int).get(T).reduce("sum") == 0
    assert not trace.exists()
    mesh, num_steps = doomed, 0
    while num_steps < 3:
        try:
            mesh.execute(os.getpid).get(T)
            num_steps += 1
        except DeviceMeshError:
            mesh = monarch_nb.heal_mesh(mesh)
    assert mesh.healthy()


def test_wrong_calls_are_what_callers_catch(procs: ProcMesh) -> None:
    counter = procs.spawn("counted", Counter, 0)
    with pytest.raises(TypeError, match="too many positional arguments") as caught:
        counter.increment.call(1, 2, 3)
    assert isinstance(caught.value, WrongArguments)
    with pytest.raises(ValueError, match="needs a mesh of one actor") as many:
        counter.increment.call_one()
    assert isinstance(many.value, MeshUsageError)


def test_run_shows_what_ranks_print_and_return(capsys: pytest.CaptureFixture[str]) -> None:
    with own_mesh("shown", {"gpus": 2}) as mesh:
        result = mesh.run("print('hello')\nrank ** 2")
        shown = set(
            capsys.readouterr().out.splitlines()
        )  # what other tests' ranks print late may be there, too
        assert {"[0] 0", "[1] 1"} <= shown
        assert "[0-1] hello" in shown or {"[0] hello", "[1] hello"} <= shown
        assert repr(result).startswith(f"<CellResult of #{result.n} on ranks 0-1: ok, ")
        assert mesh.run("print('quiet')", quiet=True).failures == {}
        assert "quiet" not in capsys.readouterr().out
        run = mesh.submit("if rank: raise ValueError('no')")
        assert repr(run).startswith("<CellRun of ")
        with pytest.raises(CellError, match="no"):
            run.get(T)
        assert repr(run) == f"<CellRun of #{run.n} on ranks 0-1: failed on rank 1>"
        assert mesh.submit("1").get(T).seconds.keys() == {0, 1}


SCRIPT = """
import sys, threading
import monarch_nb
from sample_actors import BadStart, Faulty

def attempt(name, function):
    def work():
        print(f"== {name}", file=sys.stderr, flush=True)
        function()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

mesh = monarch_nb.start("scripted", {"gpus": 4})
try:
    faulty = mesh.spawn("faulty", Faulty)
    mesh.run("learning_rate = 1")
    attempt("call", lambda: faulty.raise_alone.call().get())
    attempt("arguments", lambda: faulty.raise_on.call())
    attempt("spawn", lambda: mesh.spawn("bad", BadStart).anything.call().get())
    attempt("pull", lambda: mesh.pull("learning_rat"))
    attempt("ranks", lambda: mesh.run("1", "9"))
    attempt("pickle", lambda: faulty.raise_on.call([threading.Lock()], ""))
    attempt("function", lambda: mesh.execute(lambda: 1 / 0).get())
    forgotten = faulty.raise_on.call([3], "never read")
    while not forgotten.done():
        pass
finally:
    mesh.stop().get()
print("== main", file=sys.stderr, flush=True)
try:
    mesh.pull("x")
except Exception as error:
    raise ValueError("mine") from error
"""


def test_scripts_show_their_own_frames(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=180, env=env, check=False
    )
    assert done.returncode == 1
    output = dict(part.split("\n", 1) for part in done.stderr.split("== ")[1:])
    package = os.path.dirname(monarch_nb.__file__) + os.sep
    for name, text in output.items():
        assert f'File "{package}' not in text, f"{name} shows frames of the package:\n{text}"
        assert f'File "{script}"' in text, f"{name} doesn't show where it was called:\n{text}"
    assert "ranks 0-3: ValueError: rank {0-3} is unique" in output["call"]
    assert output["spawn"].count("raise RuntimeError") == 1
    assert (
        output["pull"]
        .rstrip()
        .endswith("name 'learning_rat' is not defined on ranks 0-3. Did you mean 'learning_rate'?")
    )
    assert "never read" in done.stderr and "its answer was not read" in done.stderr
    assert "ValueError: mine" in output["main"]


def test_failures_that_are_alike_are_in_the_journal_once() -> None:
    with own_mesh("folded", {"procs": 3}) as mesh:
        mesh.submit("raise ValueError(f'rank {rank} is broken')").wait(T)
        assert mesh.history()[-1].text().splitlines()[-1] == "ranks 0-2: ValueError: rank {0-2} is broken"
