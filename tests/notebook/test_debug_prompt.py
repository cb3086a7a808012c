"""The debugger's prompt in a real kernel: the cell that waits becomes the prompt; without anybody to type
a breakpoint is an error that says so.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from kernels import Notebook
from typist import PATIENCE_S, Typist

from monarch_nb.mesh import attach


def until_stopped(num: int) -> str:
    """Return code that waits for stops. It ends in any case: a kernel that waits for ever would take all
    other tests with it.
    """
    return (
        "import time\n"
        f"until = time.monotonic() + {PATIENCE_S}\n"
        f"while len(mesh.debugger().stops()) < {num} and time.monotonic() < until: time.sleep(0.01)\n"
        f"assert len(mesh.debugger().stops()) == {num}, (mesh.debugger().stops(), mesh.history())\n"
    )


@pytest.fixture(scope="module")
def typist() -> Iterator[Typist]:
    opened = Typist()
    name = f"typed{uuid.uuid4().hex[:6]}"
    opened.run(f"%load_ext monarch_nb\n%mesh start {name} --gpus 4")
    yield opened
    opened.run("%mesh stop")
    opened.close()


def test_the_waiting_cell_becomes_the_prompt(typist: Typist) -> None:
    prompts, shown = typist.run(
        "%%mesh\nx = rank * 2\nbreakpoint()\nprint('end', x)",
        "p x",
        "focus 1",
        "x = 100",
        "focus all",
        "c",
        first="(mesh-pdb 0-3) ",
    )
    assert prompts == [
        "(mesh-pdb 0-3) ",
        "(mesh-pdb 0-3) ",
        "(mesh-pdb 1) ",
        "(mesh-pdb 1) ",
        "(mesh-pdb 0-3) ",
    ]
    assert "line 3, in <module>: print('end', x)" in shown
    assert "[0] 0\n[1] 2\n[2] 4\n[3] 6" in shown
    assert "[1] end 100" in shown
    assert "ranks 0-3 run on" in shown


def test_a_call_that_is_waited_for_does_so_too(typist: Typist) -> None:
    source = (
        "from monarch_nb.actor import Actor, endpoint\nclass Adder(Actor):\n    @endpoint\n    def "
        "add(self, x):\n        y = x + 1\n        breakpoint()\n        return y\nadder = "
        "mesh.spawn('adder', Adder)\nlist(adder.add.call(4).get().values())"
    )
    prompts, shown = typist.run(source, "p y", "y = 9", "ll", "c", first="(mesh-pdb 0-3) ")
    assert len(prompts) == 4
    assert (
        "in add: return y" in shown and "        y = x + 1" in shown
    )  # the source of a class that was defined in a cell
    assert "[0-3] 5" in shown
    assert "[9, 9, 9, 9]" in shown


def test_who_lets_ranks_run_on_elsewhere_closes_the_prompt_here(typist: Typist) -> None:
    """As the debugger's tab does: the cell ends, nobody types, and the front end is told that its box has
    no meaning any more.
    """
    _, shown = typist.run("mesh.name")
    other = attach(shown.strip().strip("'"))
    cell = typist.client.execute(
        "%%mesh\nbreakpoint()\nfirst = 1\nbreakpoint()\nprint('end')", allow_stdin=True
    )
    asked, overs, shown = [], 0, ""
    while typist.client.get_stdin_msg(timeout=PATIENCE_S)["content"]["prompt"] != "(mesh-pdb 0-3) ":
        typist.client.input("list")
    other.debugger().command(None, "c")  # the next breakpoint asks anew
    while not asked or asked[-1] != "(mesh-pdb 0-3) ":
        asked.append(typist.client.get_stdin_msg(timeout=PATIENCE_S)["content"]["prompt"])
        if asked[-1] != "(mesh-pdb 0-3) ":
            typist.client.input("list")
    other.debugger().command(None, "c")
    while True:
        message = typist.client.get_iopub_msg(timeout=PATIENCE_S)
        content = message["content"]
        if message["parent_header"].get("msg_id") != cell:
            continue
        overs += "application/vnd.monarch-nb.input-over+json" in content.get("data", {})
        shown += content.get("text", "") + content.get("data", {}).get("text/plain", "")
        if content.get("execution_state") == "idle":
            break
    assert overs >= 2
    assert "ranks 0-3 run on" in shown and "[0-3] end" in shown
    assert "[0-3] 5" in typist.run("%%mesh\n5")[1]
    other._session.close()


def test_detach_come_back_and_quit(typist: Typist) -> None:
    _, shown = typist.run("%%mesh --async\nbreakpoint()\nz = 1\nbreakpoint()\nz = 2")
    _, shown = typist.run(until_stopped(4) + "%mesh debug", "p 1", "detach")
    assert "[0-3] 1" in shown and "come back: %mesh debug" in shown
    _, shown = typist.run("%mesh debug", "c", "p z", "q")
    assert "[0-3] 1" in shown and "ranks 0-3 run on" in shown
    assert typist.run("%mesh result")[1].count("Error") == 0
    assert "no rank of mesh" in typist.run("%mesh debug")[1]


def test_no_explanation_comes_while_somebody_debugs(typist: Typist) -> None:
    typist.run("%mesh set why-after 0.2s")
    prompts, shown = typist.run("%%mesh --ranks 0\nbreakpoint()\nz = 1", "p __import__('time').sleep(3)", "c")
    typist.run("%mesh set why-after 30s")
    assert len(prompts) == 2
    assert "why:" not in shown


def test_the_stop_button_at_the_prompt_ends_the_cell(typist: Typist) -> None:
    prompts, shown = typist.run("%%mesh\nbreakpoint()\nz = 1", None, first="(mesh-pdb 0-3) ")
    assert "ranks 0-3 were interrupted" in shown
    assert prompts == [
        "(mesh-pdb 0-3) "
    ]  # it isn't asked anew about ranks that an interrupt is on its way to
    assert "[0-3] 5" in typist.run("%%mesh\n5")[1]


def test_ranks_stand_while_the_kernel_restarts(typist: Typist) -> None:
    typist.run("%%mesh --async\nkept = rank * 3\nbreakpoint()\nend = 1")
    _, shown = typist.run(until_stopped(4) + "mesh.name")
    assert "AssertionError" not in shown, shown
    name = shown.strip().strip("'")
    typist.restart()
    typist.run(f"%load_ext monarch_nb\n%mesh attach {name}")
    _, shown = typist.run("%mesh debug", "p kept", "c")
    assert "[0] 0\n[1] 3\n[2] 6\n[3] 9" in shown and "ranks 0-3 run on" in shown
    assert "Error" not in typist.run("%%mesh\nassert kept == rank * 3")[1]


def test_post_mortem_and_settings(typist: Typist) -> None:
    typist.run("%%mesh --ranks 2\nsecret = 41\n1 / 0")
    prompts, shown = typist.run("%mesh debug --post-mortem", "p secret + 1", "q")
    assert prompts == ["(mesh-pdb 2) "] * 2
    assert "rank 2: ZeroDivisionError: division by zero" in shown and "[2] 42" in shown
    typist.run("%mesh set debug-on-error on")
    _, shown = typist.run("%%mesh --ranks 1\nsecret = 7\n[][1]", "p secret", "c")
    assert "[1] 7" in shown and "IndexError" in shown
    typist.run("%mesh set debug-on-error off")
    assert "expected stop|skip" in typist.run("%mesh set breakpoints maybe")[1]


def test_breakpoints_from_outside(typist: Typist) -> None:
    assert "expected FILE:LINE" in typist.run("%mesh break here")[1]
    assert "expected if EXPRESSION after the place" in typist.run("%mesh break In[1]:2 when x")[1]
    assert "no breakpoints are set from outside any more" in typist.run("%mesh break --clear")[1]


def test_without_a_keyboard_a_breakpoint_is_an_error() -> None:
    notebook = Notebook()
    notebook.run("%load_ext monarch_nb\n%mesh start mute --gpus 2")
    text = notebook.text("%%mesh\nbreakpoint()\nafter = rank")
    assert "stopped at a breakpoint (In [" in text and "this notebook takes no input: they go on" in text
    assert "%mesh set breakpoints skip" in text
    notebook.run("%mesh set breakpoints skip")
    assert notebook.text("%%mesh\nbreakpoint()\n'through'") == "[0-1] 'through'"
    notebook.run("%mesh set breakpoints stop")
    notebook.run("%mesh stop")
    notebook.close()


def test_a_mesh_that_ends_while_ranks_stand_shows_no_prompt() -> None:
    notebook = Notebook()
    notebook.run(f"%load_ext monarch_nb\n%mesh start ends{uuid.uuid4().hex[:6]} --gpus 2")
    notebook.run("%%mesh --async\nbreakpoint()")
    assert "AssertionError" not in notebook.text(until_stopped(2))
    notebook.run("import os, signal\nfrom monarch_nb._client import waiting\nsession = mesh._session")
    notebook.run("os.kill(session.connection.pid, signal.SIGKILL)\nwhile not session.transport.lost: pass")
    assert notebook.text("print('shown:', waiting.on_stop(session))") == "shown: None"
    notebook.close()
