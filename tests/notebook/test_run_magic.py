"""`%mesh run` in a kernel: shown live, red with the rank, in the journal, run again, exported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Notebook


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "hello.py").write_text(
        "import os, sys\nprint('hello', *sys.argv[1:], *filter(None, [os.environ.get('SEED')]))\n"
        "if sys.argv[1:] == ['fail'] and os.environ['RANK'] == '1':\n    sys.exit(3)\n"
    )
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    opened.run("%mesh start runs --gpus 2")
    opened.run(f"%cd -q {folder}")  # where ranks don't stand
    yield opened
    opened.run("%mesh stop runs")
    opened.close()


def said(notebook: Notebook, code: str) -> str:
    """Return all that a cell prints, but for the line about ranks that have taken longer than others."""
    return re.sub(r"\ntime: \[\d\] [\d.]+ \w+, \[\d\] [\d.]+ \w+\Z", "", notebook.text(code))


def test_it_runs_where_the_notebook_stands(notebook: Notebook) -> None:
    assert said(notebook, "%mesh run hello.py --lr 0.1 -m x") == "[0-1] hello --lr 0.1 -m x"
    assert said(notebook, "%mesh run --env SEED=5 --ranks 1 -m hello a") == "[1] hello a 5"
    assert said(notebook, "%mesh run hello.py") == "[0-1] hello"


def test_another_exit_code_is_a_red_cell(notebook: Notebook) -> None:
    shown = notebook.text("%mesh run hello.py fail")
    assert "ERROR" in shown and "rank 1: ScriptExit: the script has exited with code 3" in shown
    assert notebook.text("%%mesh\nrank") == "[0] 0\n[1] 1"


@pytest.mark.parametrize(
    "line",
    [
        "%mesh run",
        "%mesh run ''",
        "%mesh run --env x hello.py",
        "%mesh run --lr 0.1",
        "%mesh run --timeout soon hello.py",
    ],
)
def test_what_cant_be_is_said_at_once(notebook: Notebook, line: str) -> None:
    shown = notebook.text(line)
    assert shown.startswith("ERROR MeshUsageError: %mesh run: ") and "Usage: %mesh run" in shown


def test_it_is_in_the_journal_and_runs_again(notebook: Notebook) -> None:
    notebook.run("%mesh run --env SEED=7 hello.py 'a b'")
    line = notebook.text("%mesh history --last 1").splitlines()[-1]
    assert "%mesh run --env SEED=7 hello.py 'a b'" in line
    number = line.split()[0]
    assert said(notebook, f"%mesh rerun {number}") == "[0-1] hello a b 7"
    assert said(notebook, f"%mesh rerun {number} --ranks 0") == "[0] hello a b 7"


def test_it_runs_in_the_background(notebook: Notebook) -> None:
    notebook.run("%mesh run --async hello.py later")
    assert "[0-1] hello later" in notebook.text("%mesh result")


def test_an_exported_notebook_runs_it(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("%mesh run --ranks 0 hello.py exported")
    notebook.run(f"%mesh export {tmp_path}/run.ipynb")
    assert "%mesh run --ranks 0 hello.py exported" in (tmp_path / "run.ipynb").read_text()
    notebook.run(f"%mesh export {tmp_path}/run.py")
    assert "# %mesh run hello.py exported" in (tmp_path / "run.py").read_text()
