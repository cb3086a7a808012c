"""One pdb for all ranks, driven by scripted prompts, on one host and on two."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import debugged_actors
import pytest
from debugged_actors import Debugged, DebuggedAsync
from own_meshes import own_mesh
from waiting import ask_until, wait_until

from monarch_nb import mesh as meshes
from monarch_nb._debug import MeshDebugger, Prompt, Stop
from monarch_nb._debug.client import completions
from monarch_nb._debug.fold import FoldedAnswer, fold_answers, place_text
from monarch_nb._debug.grammar import Cast, Detach, Focus, Line, ListStops, PromptError, Quit, parse
from monarch_nb.exceptions import ActorError
from monarch_nb.mesh import Mesh

PATIENCE_S = 60.0
CELL = """
def step(x):
    y = x * 2
    breakpoint()
    z = y + rank // 2
    return z

out = step(rank)
"""


@pytest.fixture(scope="module", params=[0, 2], ids=["one_host", "two_hosts"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    with own_mesh(
        f"bugs{request.param}", {"gpus": 4 if not request.param else 2}, num_hosts=request.param
    ) as found:
        yield found


@pytest.fixture
def debugger(mesh: Mesh) -> Iterator[MeshDebugger]:
    found = mesh.debugger()
    yield found
    found.set(skip=False, on_error=False, abandoned_s=600)
    stops = found.stops()
    if stops:
        found.send(stops, "quit")


def wait_for(debugger: MeshDebugger, num: int, wanted: Callable[[Stop], bool] = lambda _: True) -> list[Stop]:
    """Return the stops once there are as many."""
    return ask_until(
        lambda: [s for s in debugger.stops() if wanted(s)], lambda s: len(s) == num, f"{num} ranks that stand"
    )


def talk(mesh: Mesh, *lines: str) -> list[str]:
    """Type lines at the prompt; return what it has shown for each, and the rest in the end."""
    typed, shown, answers = iter(lines), [[]], True

    def read(prompt: str) -> str:
        line = next(typed, None)
        if line is None:
            raise EOFError
        shown.append([])
        return line

    answers = Prompt(mesh, read, lambda text: shown[-1].append(text)).run()
    assert answers or len(shown) == len(lines) + 1
    return ["\n".join(texts) for texts in shown]


def test_all_ranks_stop_answer_and_step_together(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit(CELL, number=3)
    stops = wait_for(debugger, 4)
    assert {(s.thread, s.what, s.file, s.line, s.function, s.reason) for s in stops} == {
        ("main", f"cell #{run.n}", "In [3]", 5, "step", "breakpoint")
    }
    assert [r.state for r in mesh.status().ranks] == ["debugging"] * 4
    first, y, where, after, z, gone = talk(mesh, "p y", "w", "n", "p z", "c")
    assert first.startswith("ranks 0-3: In [3], line 5, in step: z = y + rank // 2")
    assert "->    5      z = y + rank // 2" in first
    assert y == "[0] 0\n[1] 2\n[2] 4\n[3] 6"
    assert (
        where == "[0-3]   In [3](8) <module>(): out = step(rank)\n[0-3] > In [3](5) step(): z = y + rank // 2"
    )
    assert after.startswith("ranks 0-3: In [3], line 6, in step: return z")
    assert z == "[0] 0\n[1] 2\n[2] 5\n[3] 7"
    assert gone == "ranks 0-3 run on"
    assert run.wait().failures == {}
    assert list(mesh.pull("out").values()) == [0, 2, 5, 7]


def test_what_is_assigned_counts_whatever_is_looked_at_after(mesh: Mesh, debugger: MeshDebugger) -> None:
    """Whoever reads a frame's variables makes pdb's copy of them anew: `ll` did so in Python 3.11.2, `up`
    does it still, and another thread may at any time.
    """
    run = mesh.submit(CELL)
    wait_for(debugger, 4)
    looks = "ll", "w", "up", "rank + 0", "down", "p __import__('sys')._getframe(5) and y", "!!vars"
    assert talk(mesh, "y = 100", *looks, "p y", "c")[9] == "[0-3] 100"
    assert run.wait().failures == {}
    assert list(mesh.pull("out").values()) == [100, 100, 101, 101]


def test_one_rank_stops_and_the_others_end(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit("if rank == 2: breakpoint()\nend = rank")
    (stop,) = wait_for(debugger, 1)
    assert stop.rank == 2
    assert talk(mesh, "!rank", "p rank + 40", "continue")[1:] == ["[2] 2", "[2] 42", "rank 2 runs on"]
    assert run.wait().failures == {}


def test_focus_cast_and_bad_input_leave_the_session_intact(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit(CELL)
    wait_for(debugger, 4)
    answers = talk(
        mesh,
        "focus 1",
        "p x",
        "focus ranks(7)",
        "focus",
        "attach nobody 1",
        "attach main 3",
        "p x",
        "cast main ranks(0, 2) p x",
        "cast main",
        "focus all",
        "p 1 +",
        "p 1/0",
        "nonsense words",
        "list",
        "q",
    )
    assert answers[1].startswith("rank 1: ")
    assert answers[2] == "[1] 1"
    assert answers[3].startswith("*** can't read ranks 'ranks(7)': rank 7 is out of range")
    assert answers[4].startswith("*** expected: focus RANKS")
    assert answers[5] == "*** no such actor: 'nobody'; stopped are main (main: the rank's main thread)"
    assert answers[7] == "[3] 3"
    assert answers[8] == "[0] 0\n[2] 2"
    assert answers[9].startswith("*** expected: cast ACTOR RANKS COMMAND")
    assert answers[11].startswith("[0-3] *** SyntaxError")
    assert answers[12] == "[0-3] *** ZeroDivisionError: division by zero"
    assert answers[13].startswith("[0-3] *** ")
    assert answers[14].startswith("ranks 0-3: In")
    assert answers[15] == "ranks 0-3 run on"
    assert run.wait().failures == {}


def test_all_of_pdb_and_python(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit(CELL, "0-1", number=8)
    wait_for(debugger, 2)
    answers = talk(
        mesh,
        "l 4,6",
        "display y",
        "u",
        "d",
        "interact",
        "a = y * 10 + 1",
        "print(a)",
        "exit",
        "y = 100",
        "n",
        "p z",
        "args",
        "whatis z",
        "help next",
        "help",
        "ll",
        "until 6",
        "r",
        "c",
    )
    assert "[0-1]   4  \t    breakpoint()" in answers[1]
    assert answers[2] == "[0] display y: 0\n[1] display y: 2"
    assert "in <module>: out = step(rank)" in answers[3]
    assert "in step: z = y" in answers[4]
    assert answers[7] == "[0] 1\n[1] 21"
    assert "display y: 100" in answers[10]
    assert answers[11] == "[0-1] 100"
    assert answers[12] == "[0] x = 0\n[1] x = 1"
    assert answers[13] == "[0-1] <class 'int'>"
    assert "Continue execution until the next line" in answers[14]
    assert "whom lines go to" in answers[15]
    assert "[0-1]   3  \t    y = x * 2" in answers[16]
    assert run.wait().failures == {}


def test_actors_sync_and_async_each_in_their_own_thread(mesh: Mesh, debugger: MeshDebugger) -> None:
    one, other = mesh.spawn("one", Debugged), mesh.spawn("other", DebuggedAsync)
    first, second = one.add.call(5), other.slice(gpus=0).wait.call(7)
    num_other = len(other.slice(gpus=0))
    stops = wait_for(debugger, 4 + num_other)
    assert {s.thread for s in stops} == {"one", "other"}
    assert {s.what for s in stops} == {"Debugged.add", "DebuggedAsync.wait"}
    answers = talk(mesh, "attach one 3", "p doubled", "ll", "attach other 0", "p y", "focus all", "c")
    assert "rank 3: " in answers[1] and "in add: self.total += doubled" in answers[1]
    assert answers[2] == "[3] 13"
    assert "doubled = x * 2 + current_rank().rank" in answers[3]
    assert answers[5] == "[0] 8"
    assert list(first.get(PATIENCE_S).values()) == [10, 11, 12, 13]
    assert set(second.get(PATIENCE_S).values()) == {8}


def test_two_endpoints_of_one_actor_at_once(mesh: Mesh, debugger: MeshDebugger) -> None:
    actor = mesh.spawn("twice", DebuggedAsync).slice(gpus=0)
    calls = [actor.in_thread.call(x) for x in (1, 2)]
    stops = wait_for(debugger, 2 * len(actor))
    assert {s.thread for s in stops} == {"twice"} and {s.function for s in stops} == {"_work"}
    one = [s for s in stops if debugger.send([s], "p x").texts[s.id] == "1"]
    debugger.send(one, "y = 77")
    talk(mesh, "c")
    assert [set(c.get(PATIENCE_S).values()) for c in calls] == [{77}, {20}]


def test_from_a_terminal(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit(CELL)
    wait_for(debugger, 4)
    typed = "p y\nfocus 2\np z\ncast main 1 p x\nc\nfocus all\nq\n"
    done = subprocess.run(
        [sys.executable, "-m", "monarch_nb", "debug", mesh.name],
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert "[0] 0\n[1] 2\n[2] 4\n[3] 6" in done.stdout and "[1] 1" in done.stdout
    assert "[2] *** NameError" in done.stdout and "rank 2 runs on" in done.stdout
    assert run.wait().failures == {}
    assert (
        "stands at a breakpoint"
        in subprocess.run(
            [sys.executable, "-m", "monarch_nb", "debug", mesh.name],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        ).stdout
    )


def test_post_mortem_of_cells_and_calls(mesh: Mesh, debugger: MeshDebugger) -> None:
    mesh.submit(
        "def f(k):\n    inner = k * 2\n    return [][k] if rank == 1 else 1 // (rank - 2)\nf(21)",
        "1-2",
        number=4,
    ).wait()
    debugger.post_mortem()
    stops = debugger.stops()
    assert {(s.rank, s.error) for s in stops} == {
        (1, "IndexError: list index out of range"),
        (2, "ZeroDivisionError: integer division or modulo by zero"),
    }
    assert {(s.reason, s.function) for s in stops} == {("post-mortem", "f")}
    assert talk(mesh, "p inner, rank", "q")[1] == "[1] (42, 1)\n[2] (42, 2)"
    failing = mesh.spawn("failing", Debugged)
    with pytest.raises(ActorError):
        failing.fail.call(0).get(PATIENCE_S)
    debugger.post_mortem("3")
    (stop,) = debugger.stops()
    assert (stop.rank, stop.function, stop.what) == (3, "fail", "failing")
    assert talk(mesh, "p inner", "u", "q")[1] == "[3] 0"
    failing.stop().get(PATIENCE_S)
    mesh.run("fine = 1")
    debugger.post_mortem("1-2")
    assert debugger.stops() == []  # the frames are gone with the next cell


def test_debug_on_error_stops_by_itself(mesh: Mesh, debugger: MeshDebugger) -> None:
    debugger.set(on_error=True)
    run = mesh.submit("value = rank\nif rank == 0: raise KeyError('lost')\n")
    (stop,) = wait_for(debugger, 1)
    assert (stop.rank, stop.reason, stop.error) == (0, "exception", "KeyError: 'lost'")
    assert not run.done
    talk(mesh, "c")
    assert set(run.wait().failures) == {0}


def test_breakpoints_from_outside_with_a_condition(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit("import time\ni = 0\nwhile i < 10**9:\n    i += 1\n    time.sleep(0.01)\n", number=6)
    wait_until(lambda: all(r.line for r in mesh.status().ranks), "all ranks stand somewhere")
    found = debugger.break_at("In[6]", 5, "i > 3 and rank != 1")
    assert found == dict.fromkeys(range(4), "breakpoint at In[6]:5 if i > 3 and rank != 1")
    assert "not set: the condition 'i >' is not Python" in debugger.break_at("In[6]", 5, "i >", "0")[0]
    assert "not set: In[6] has no code in line 99" in debugger.break_at("In[6]", 99, "", "0")[0]
    stops = wait_for(debugger, 3)
    assert {s.rank for s in stops} == {0, 2, 3} and {s.line for s in stops} == {5}
    debugger.clear_breaks()
    talk(mesh, "i = 10**9", "q")
    mesh.interrupt("1")
    run.wait()


def test_a_breakpoint_from_outside_in_an_actor(mesh: Mesh, debugger: MeshDebugger) -> None:
    actor = mesh.spawn("armed", Debugged)
    actor.add_if.call(1).get(PATIENCE_S)
    line = next(
        i
        for i, text in enumerate(inspect.getsource(debugged_actors).splitlines(), 1)
        if "self.total += x" in text
    )
    found = debugger.break_at("debugged_actors.py", line, "x == 2", "2")
    assert found == {2: f"breakpoint at debugged_actors.py:{line} if x == 2"}
    actor.add_if.call(1).get(PATIENCE_S)
    pending = actor.add_if.call(2)
    (stop,) = wait_for(debugger, 1)
    assert (stop.rank, stop.line, stop.text) == (2, line, "self.total += x")
    debugger.clear_breaks()
    talk(mesh, "p self.total", "q")
    assert list(pending.get(PATIENCE_S).values()) == [4] * 4


def test_pdb_set_trace_and_skipped_breakpoints(mesh: Mesh, debugger: MeshDebugger) -> None:
    actor = mesh.spawn("tracing", Debugged)
    pending = actor.add_if.call(3)
    assert {s.function for s in wait_for(debugger, 4)} == {"add_if"}
    talk(mesh, "c")
    pending.get(PATIENCE_S)
    debugger.set(skip=True)
    actor.add_if.call(3).get(PATIENCE_S)
    assert mesh.run(CELL).failures == {}
    assert debugger.stops() == []


def test_an_interrupt_ends_what_is_stopped(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit(CELL)
    wait_for(debugger, 4)
    mesh.interrupt()
    result = run.wait()
    assert result.reason == "user" and result.stopped == (0, 1, 2, 3)
    wait_for(debugger, 0)
    mesh.run("alive = 1")


LINE_AS_IT_LEAVES = """
from monarch_nb._rank.this_rank import this_rank
debugger = this_rank().debugger
leave = debugger.leave

def leave_late(key):
    debugger.leave = leave
    debugger.take_line(key, 77, "quit")
    leave(key)

debugger.leave = leave_late
"""


def test_a_line_that_comes_while_a_stop_ends_does_nothing_to_the_next_one(
    mesh: Mesh, debugger: MeshDebugger
) -> None:
    """Somebody types `quit` in the moment in which somebody else interrupts: the next cell stops all the
    same.
    """
    assert mesh.submit(LINE_AS_IT_LEAVES).wait().failures == {}
    run = mesh.submit("breakpoint()\nend = 1")
    wait_for(debugger, 4)
    run.interrupt()
    run.wait()
    run = mesh.submit("kept = rank\nbreakpoint()\nend = 1")
    wait_for(debugger, 4)
    assert talk(mesh, "p kept", "c")[1:] == ["[0] 0\n[1] 1\n[2] 2\n[3] 3", "ranks 0-3 run on"]
    assert run.wait().failures == {}


def test_an_interrupt_ends_the_python_prompt_of_a_stop(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit("breakpoint()\nend = 1")
    stops = wait_for(debugger, 4)
    debugger.send(stops, "interact")
    run.interrupt()
    run.wait()
    run = mesh.submit("kept = rank\nbreakpoint()\nend = 1")
    assert {s.mode for s in wait_for(debugger, 4)} == {"pdb"}
    assert talk(mesh, "c")[1:] == ["ranks 0-3 run on"]
    assert run.wait().failures == {}


def test_a_rank_that_dies_at_a_breakpoint(mesh: Mesh, debugger: MeshDebugger, unhandled: list[Any]) -> None:
    run = mesh.submit(CELL)
    wait_for(debugger, 4)
    os.kill(mesh.status().ranks[1].pid, signal.SIGKILL)
    wait_for(debugger, 3)
    assert talk(mesh, "p rank", "c")[1] == "[0] 0\n[2] 2\n[3] 3"
    assert set(run.wait().failures) == {1}
    mesh.heal()


def test_several_clients_and_detach(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit(CELL)
    wait_for(debugger, 4)
    assert talk(mesh, "p y", "detach")[2] == "ranks 0-3 stay where they are; come back: %mesh debug"
    other = meshes.attach(mesh.name, listens=False)
    assert len(other.debugger().stops()) == 4
    assert talk(other, "n", "p z")[2].startswith("[0] 0\n[1] 2\n[2] 5\n[3] 7\n")
    assert {s.line for s in debugger.stops()} == {6}
    other._session.close()
    talk(mesh, "q")
    run.wait()


def test_time_outs_are_held_while_somebody_debugs(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit(CELL, timeout=0.2)
    stops = wait_for(debugger, 4)
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        debugger.send(stops, "p y")
    assert not run.done and len(debugger.stops()) == 4
    talk(mesh, "c")
    assert run.wait().failures == {}


def test_time_outs_of_process_groups_are_held(mesh: Mesh, debugger: MeshDebugger, tmp_path: Path) -> None:
    mesh.run(
        "import torch, torch.distributed as dist\nfrom datetime import timedelta\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/store', rank=rank, "
        "world_size=world_size, timeout=timedelta(seconds=77))"
    )
    read = (
        "group = dist.group.WORLD\nseconds = "
        "group._get_backend(group._device_types[0]).options._timeout.total_seconds()"
    )
    run = mesh.submit("if rank == 0: breakpoint()\nend = 1", "0")
    wait_for(debugger, 1)
    mesh.run(read, "1-3")
    assert set(mesh.pull("seconds", ranks="1-3").values()) == {7 * 86400.0}
    talk(mesh, "c")
    run.wait()
    wait_for(debugger, 0)
    mesh.run(read)
    assert set(mesh.pull("seconds").values()) == {77.0}
    mesh.run("dist.destroy_process_group()")


def test_ranks_run_on_when_everybody_has_gone() -> None:
    subprocess.run(
        [sys.executable, "-m", "monarch_nb", "start", "left", "--procs", "2"], check=True, capture_output=True
    )
    mesh = meshes.attach("left", listens=False)
    debugger = mesh.debugger()
    feed = debugger.watch(lambda _stops: None)
    run = mesh.submit(CELL)
    wait_for(debugger, 2)
    debugger.set(abandoned_s=0.05)
    assert len(debugger.stops()) == 2  # somebody watches
    feed.close()
    assert run.wait().failures == {}
    assert any(
        "nobody has been there to debug ranks 0-1 for 0.05 s: they run on" in answers
        for answers in run.result.messages
    )
    mesh.stop().get(PATIENCE_S)


def test_completion_and_variables(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit("loss_value = 0.5\nloss_sum = 2\nbreakpoint()\nend = 1", "1")
    stops = wait_for(debugger, 1)
    assert completions(mesh, "loss_") == ["loss_sum", "loss_value"]
    found = json.loads(next(iter(debugger.send(stops, "!!vars").texts.values())))
    assert found["loss_sum"] == {"type": "int", "value": "2"}
    assert debugger.command(None, "p loss_sum").answers == [FoldedAnswer([stops[0].id], "1", "2")]
    talk(mesh, "c")
    run.wait()


# --- the grammar


def test_the_grammar() -> None:
    assert parse("list") == ListStops()
    assert parse("l 3,4") == Line("l 3,4")
    assert parse("focus hosts=0,gpus=2:8") == Focus("hosts=0,gpus=2:8")
    assert parse("attach trainer 3") == Focus("3", "trainer")
    assert parse("cast trainer ranks(1, 4) p x + 1") == Cast("trainer", "ranks(1, 4)", "p x + 1")
    assert parse("cast trainer 2:7:2 n") == Cast("trainer", "2:7:2", "n")
    assert parse("detach") == Detach()
    assert parse("quit") == Quit()
    assert parse("cont") == Line("continue")
    for text in ("focus", "attach trainer", "cast trainer 3"):
        with pytest.raises(PromptError, match="expected"):
            parse(text)


def test_folding() -> None:
    from monarch_nb._debug import Answers

    assert [e.ranks for e in fold_answers(Answers({4: "a", 5: "b", 6: "a"}, (), {4: 0, 5: 1, 6: 2}))] == [
        "0,2",
        "1",
    ]
    running = [Stop(1, 3, "main", "cell #1", "f.py", 4, "g", state="running")]
    assert place_text(running) == "rank 3: runs on from f.py, line 4"


def test_a_stop_that_has_gone_is_said(mesh: Mesh, debugger: MeshDebugger) -> None:
    run = mesh.submit("breakpoint()\nend = 1", "0")
    stops = wait_for(debugger, 1)
    debugger.send(stops, "c")
    run.wait()
    assert list(debugger.send(stops, "p 1").texts.values()) == ["it runs on, and no longer stands there"]
