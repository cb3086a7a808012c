"""What a reader sees of failures on many ranks: once, with the values that differ, and the notebook's own
lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kernels import Notebook

ACTORS = """
from monarch_nb.actor import Actor, endpoint, current_rank
class Frail(Actor):
    @endpoint
    def step(self, ranks):
        rank = current_rank().rank
        if rank in ranks:
            tried = f"tried to allocate {rank * 512} MiB at 0x7f00{rank}"
            raise RuntimeError(f"CUDA out of memory on device {rank}: {tried}")
        return rank
    @endpoint
    def leave(self):
        quit()
    @endpoint
    def close(self):
        import os
        os.close(1)
    @endpoint
    def say(self, text):
        print(text)
class Unbuilt(Actor):
    def __init__(self, path):
        self.file = open(path)
    @endpoint
    def go(self):
        return 1
frail = mesh.spawn("frail", Frail)
frail.initialized.get()
"""


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    assert "is ready" in opened.text("%mesh start failing --gpus 4")
    opened.run(ACTORS)
    yield opened
    assert "has ended" in opened.text("%mesh stop failing")
    opened.close()


@pytest.fixture(scope="module")
def show(notebook: Notebook) -> Callable[[str], str]:
    return notebook.text


def test_run_shows_and_its_result_has_a_short_repr(show: Callable[[str], str]) -> None:
    lines = show("mesh.run('print(\"hello\")\\nrank + 1')").splitlines()
    assert lines[:5] == ["[0-3] hello", "[0] 1", "[1] 2", "[2] 3", "[3] 4"]
    assert lines[-1].startswith("<CellResult of #") and ": ok, " in lines[-1]


def test_a_cell_that_fails_alike_is_one_failure(show: Callable[[str], str]) -> None:
    text = show("%%mesh\nassert rank < 0, f'rank {rank} broken'")
    assert "ranks 0-3: AssertionError: rank {0-3} broken" in text
    assert text.count("assert rank < 0") == 1


def test_a_failure_in_another_line_is_another_one(show: Callable[[str], str]) -> None:
    text = show("%%mesh\nif rank == 1:\n    raise ValueError(rank)\nraise ValueError(rank)")
    assert "rank 1" in text and "ranks 0,2-3" in text and "ValueError: {0,2-3}" in text


def test_warnings_of_ranks_are_one_line(show: Callable[[str], str]) -> None:
    log = (
        "import logging\nlogging.basicConfig(force=True)\nlogging.error('rank %d lost port %d', rank, "
        "4000 + rank)"
    )
    assert show(f"%%mesh\n{log}") == "[0-3] ERROR:root:rank {0-3} lost port {4000-4003}"
    text = show("%%mesh\nimport warnings\nwarnings.warn(f'rank {rank} is slow')\nprint('ERROR', rank)")
    assert "UserWarning: rank {0-3} is slow" in text
    assert all(f"[{rank}] ERROR {rank}" in text for rank in range(4)), (
        "ordinary output: two lines that differ in a number are two"
    )


def test_an_endpoint_that_fails_on_some_ranks(show: Callable[[str], str]) -> None:
    text = show("frail.step.call([1, 2, 3]).get()")
    wanted = (
        "ranks 1-3: RuntimeError: CUDA out of memory on device {1-3}: tried to allocate {512 MiB, 1024 "
        "MiB, 1536 MiB} at {0x7f001, 0x7f002, 0x7f003}"
    )
    assert wanted in text
    assert text.count("Traceback") == 1 and "monarch_nb/" not in text


def test_a_constructor_that_fails_is_told_once(show: Callable[[str], str]) -> None:
    first = show("unbuilt = mesh.spawn('unbuilt', Unbuilt, '/no/such/file')\nunbuilt.go.call().get()")
    assert first.count("self.file = open(path)") == 1 and "interactiveshell" not in first
    again = show("unbuilt.go.call().get()")
    assert (
        "actor 'unbuilt' was not constructed on rank" in again
        and "FileNotFoundError" in again
        and "self.file" not in again
    )
    assert show("1 + 1") == "2"
    built = show("mesh.spawn('unbuilt', Unbuilt, '/no/such/file').initialized.get()")
    assert "Cell In[" in built
    assert "ipykernel_" not in built + first + again


def test_quit_ends_what_it_stands_in(show: Callable[[str], str]) -> None:
    """The notebook's own `quit` holds its shell: what is sent is an ordinary one."""
    assert "ranks 0-3: SystemExit" in show("mesh.execute(lambda: quit()).get()")
    show("leaving = mesh.spawn('leaving', Frail)\nleaving.initialized.get()")
    text = show("leaving.leave.call().get()")
    assert "leaving.leave raised SystemExit" in text
    assert "Cell In[" in text
    assert "ipykernel_" not in text


def test_an_actor_that_closes_its_output_is_told_once(show: Callable[[str], str]) -> None:
    show("closing = mesh.spawn('closing', Frail)\nclosing.close.call().get()")
    text = show("closing.say.call('seen').get()")
    assert "[0-3] seen" in text
    assert "[0-3] descriptor 1 was closed: it leads to the cell's output again" in text
    again = show("closing.say.call('again').get()")
    assert "[0-3] again" in again
    assert "descriptor" not in again


def test_a_value_whose_repr_raises_is_named(show: Callable[[str], str]) -> None:
    show("%%mesh\nclass Mute:\n    def __repr__(self): raise ValueError('no repr')\nmute = Mute()")
    wanted = "<Mute object: its __repr__ raised ValueError: no repr>"
    assert wanted in show("mesh.pull('mute')")
    assert wanted in show("print(mesh.pull('mute'))")


def test_a_variable_that_is_not_there_is_one_line(show: Callable[[str], str]) -> None:
    show("%%mesh\nlearning_rate = 1\nif rank < 2: half = 1")
    wanted = "ERROR NameError: name 'learning_rat' is not defined on ranks 0-3. Did you mean 'learning_rate'?"
    assert show("%mesh pull learning_rat") == wanted
    assert show("%mesh diff learning_rat") == wanted
    assert show("mesh.pull('learning_rat')").splitlines()[0] == wanted
    assert (
        show("%mesh pull half")
        == "ERROR NameError: name 'half' is not defined on ranks 2-3; ranks 0-1 have it: --ranks 0-1"
    )
