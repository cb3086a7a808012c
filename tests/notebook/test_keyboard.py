"""`input()` on a rank asks in the cell that waits; where nobody can type, it says what to do."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator

import pytest
from kernels import Notebook
from typist import PATIENCE_S, Typist


@pytest.fixture(scope="module")
def typist() -> Iterator[Typist]:
    opened = Typist()
    opened.run(f"%load_ext monarch_nb\n%mesh start asks{uuid.uuid4().hex[:6]} --gpus 2")
    yield opened
    opened.run("%mesh stop")
    opened.close()


def test_the_rank_that_asks_is_named_and_gets_the_answer(typist: Typist) -> None:
    prompts, shown = typist.run("%%mesh --ranks 1\nname = input('name? ')\nprint('hello', name)", "Ada")
    assert prompts == ["[1] name? "] and "[1] hello Ada" in shown


def test_each_rank_gets_its_own_answer(typist: Typist) -> None:
    prompts, shown = typist.run("%%mesh\nfirst = input('n: ')\nfirst, rank", "one", "two")
    answers = dict(zip(prompts, ("one", "two"), strict=True))
    assert sorted(prompts) == ["[0] n: ", "[1] n: "]
    assert f"[0] ('{answers['[0] n: ']}', 0)\n[1] ('{answers['[1] n: ']}', 1)" in shown


def test_passwords_and_several_lines(typist: Typist) -> None:
    prompts, shown = typist.run(
        "%%mesh --ranks 0\nimport getpass\ngetpass.getpass(), input('next ')", "secret", "line"
    )
    assert prompts == ["[0] Password: ", "[0] next "] and "[0] ('secret', 'line')" in shown


def test_an_actor_asks_in_the_cell_that_calls(typist: Typist) -> None:
    source = (
        "from monarch_nb.actor import Actor, endpoint\nclass Asker(Actor):\n    @endpoint\n    def "
        "ask(self):\n        return input('actor? ')\nasker = mesh.spawn('asker', Asker)\n"
        "sorted(asker.ask.call().get().values())"
    )
    prompts, shown = typist.run(source, "x", "y")
    assert sorted(prompts) == ["[0] actor? ", "[1] actor? "] and "['x', 'y']" in shown


def test_the_stop_button_at_a_question_ends_the_cell(typist: Typist) -> None:
    prompts, shown = typist.run("%%mesh --ranks 0\ninput('stop me ')", None)
    assert prompts == ["[0] stop me "] and "rank 0 was interrupted" in shown
    assert "[0-1] 5" in typist.run("%%mesh\n5")[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_question_of_a_rank_that_does_not_wait_any_more_is_taken_back(
    typist: Typist, number: int
) -> None:
    """The cell ends, nobody types, and the front end is told that its box has no meaning any more."""
    pids = typist.run("for pid in mesh.execute(__import__('os').getpid).get().values(): print(pid)")[
        1
    ].split()
    cell = typist.client.execute("%%mesh --ranks 1\ninput('name? ')", allow_stdin=True)
    assert typist.client.get_stdin_msg(timeout=PATIENCE_S)["content"]["prompt"] == "[1] name? "
    os.kill(int(pids[1]), number)
    overs, shown, state = 0, "", ""
    while state != "idle":
        message = typist.client.get_iopub_msg(timeout=PATIENCE_S)
        if message["parent_header"].get("msg_id") == cell:
            content = message["content"]
            overs += "application/vnd.monarch-nb.input-over+json" in content.get("data", {})
            shown += (
                content.get("text", "")
                + content.get("evalue", "")
                + content.get("data", {}).get("text/plain", "")
            )
            state = content.get("execution_state", state)
    assert overs == 1 and "rank 1 no longer waits for input" in shown
    if number == signal.SIGKILL:
        assert "killed by SIGKILL" in shown and "rank 1 started anew" in typist.run("%mesh heal")[1]
    assert "[0-1] 5" in typist.run("%%mesh\n5")[1]


def test_a_cell_in_the_background_says_what_to_do(typist: Typist) -> None:
    typist.run("%%mesh --async\ninput('nobody? ')")
    prompts, shown = typist.run(
        "import time\nwhile mesh.history()[-1].status == 'running': time.sleep(0.1)\n%mesh result"
    )
    assert prompts == [] and "StdinNotImplementedError: input() on rank" in shown
    assert "%mesh push NAME" in shown


def test_a_notebook_without_a_keyboard_says_what_to_do() -> None:
    notebook = Notebook()
    notebook.run("%load_ext monarch_nb\n%mesh start mute --procs 1")
    text = notebook.text("%%mesh\ninput('who? ')")
    assert (
        "StdinNotImplementedError: input() on rank 0 needs somebody who types, and no input can be "
        "typed where this notebook runs"
    ) in text
    assert "%mesh push NAME" in text and notebook.text("%%mesh\n5") == "5"
    assert "keyboard.py" not in text
    assert "----> 1 input('who? ')" in text
    notebook.run("%mesh stop mute")
    notebook.close()
