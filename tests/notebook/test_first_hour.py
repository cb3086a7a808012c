"""What a new user types in the first hour, in a real kernel: help, lists, settings, a mesh that has ended,
an actor that raises, an export.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from kernels import Notebook
from waiting import wait_until


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    opened.run("%mesh start hour --procs 2")
    yield opened
    opened.run("%mesh stop hour")
    opened.close()


def test_help(notebook: Notebook) -> None:
    shown = notebook.text("%mesh help")
    assert re.search(r"^    heal +Restore what was lost", shown, re.MULTILINE)
    assert "%mesh help VERB explains one" in shown and "%%mesh [-h] [--ranks RANKS]" in shown
    assert notebook.text("%mesh help heal") == notebook.text("%mesh heal --help")
    assert "Did you mean %mesh heal?" in notebook.text("%mesh help haeal")


def test_settings_and_the_mesh_in_use_are_shown(notebook: Notebook) -> None:
    shown = notebook.text("%mesh set")
    assert re.search(r"^breakpoints +stop +stop\|skip +", shown, re.MULTILINE)
    assert re.search(r"^why-after +30 s +TIME\|off +", shown, re.MULTILINE)
    notebook.run("%mesh set breakpoints skip")
    assert re.match(r"breakpoints +skip ", notebook.text("%mesh set breakpoints"))
    notebook.run("%mesh set breakpoints stop")
    assert "expected stop|skip, not 'halt'" in notebook.text("%mesh set breakpoints halt")
    assert notebook.text("%mesh use").startswith(
        "using mesh 'hour' (procs=2: ranks 0-1); another one: %mesh use NAME"
    )


def test_the_list_says_size_state_age_and_owner(notebook: Notebook) -> None:
    lines = notebook.text("%mesh list").splitlines()
    assert re.fullmatch(r"  name +ranks +state +up +started by +in use by", lines[0])
    assert re.fullmatch(
        r"\* hour +2 \(procs=2\) +ok +[\d.]+ (s|min) +notebook \(pid \d+\) +1 client +controller pid \d+",
        lines[1],
    )


def test_an_actor_that_raises_names_the_cells(notebook: Notebook) -> None:
    defined = (
        "from monarch_nb.actor import Actor, endpoint\nclass Broken(Actor):\n    @endpoint\n    def "
        "go(self):\n        return [][1]"
    )
    notebook.run(defined)
    number = int(notebook.text("print(get_ipython().execution_count - 2)"))
    notebook.run("broken = mesh.spawn('broken', Broken)")
    shown = notebook.text("broken.go.call().get()")
    assert f"Cell In[{number}], line 5, in go\n    return [][1]" in shown
    assert f"called from:\n  Cell In[{number + 3}], line 1, in <module>" in shown
    assert "ipykernel_" not in shown


def test_an_export_brings_what_was_pushed_or_says_that_it_is_missing(
    notebook: Notebook, tmp_path: Path
) -> None:
    notebook.run("lr, sizes, token = 0.1, [8, None], 'secret'")
    notebook.run("%mesh push lr sizes token")
    notebook.run("only = 3\n%mesh push only --ranks 1")
    notebook.run("%%mesh\nfound = (lr, sizes, rank)")
    output = notebook.text(f"%mesh export {tmp_path}/out.ipynb")
    assert (
        "1 cell written to" in output
        and "token, pushed from a notebook, is missing: the file says where to define it" in output
    )
    sources = [c.source for c in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells]
    assert sources[1].startswith(
        "%%mesh\nlr = 0.1\nsizes = [8, None]\n# token: pushed from the notebook; define it here"
    )
    assert sources[2] == "%%mesh --ranks 1\nonly = 3"
    notebook.run(f"%mesh export {tmp_path}/out.py")
    assert "secret" not in (tmp_path / "out.py").read_text() + (tmp_path / "out.ipynb").read_text()
    assert runpy.run_path(str(tmp_path / "out.py"))["found"] == (0.1, [8, None], 0)


def test_the_journal_is_turned_off_and_on_and_kept_for_some_days(notebook: Notebook) -> None:
    assert "are not kept from now on" in notebook.text("%mesh set journal off")
    notebook.run("%%mesh\nprint('unheard', 'of')")
    shown = notebook.text("print(mesh.status().journal)")
    kept = Path(shown.strip().splitlines()[-1])
    assert "it was turned off" in notebook.text("%mesh history")
    notebook.run("%mesh set journal on")
    notebook.run("%%mesh\nprint('heard', 'of')")
    assert "are kept for 7 days in" in notebook.text("%mesh set journal 7 days")
    history = notebook.text("%mesh history")
    assert "print('heard', 'of')" in history and "kept on disk for 7 days" in history
    wrong = notebook.text("%mesh set journal soon")
    assert "%mesh set journal: expected DAYS|on|off, not 'soon'" in wrong and "Traceback" not in wrong

    def on_disk() -> bytes:
        return b"".join(file.read_bytes() for file in kept.rglob("*") if file.is_file())

    wait_until(lambda: b"heard of" in on_disk(), "the output that is kept")
    assert b"unheard of" not in on_disk()


def test_history_stands_in_columns(notebook: Notebook) -> None:
    notebook.run("%%mesh --ranks 0\n1")
    lines = [line for line in notebook.text("%mesh history").splitlines() if line[0] != "("]
    assert len(lines) > 2
    columns = [re.match(r"(#\d+ +)(\d\d:\d\d:\d\d  )(\S+ +)(\[\S*\] +)\w+ ", line) for line in lines]
    assert len({tuple(map(len, found.groups())) for found in columns if found}) == 1 and all(columns)


def test_a_rank_that_is_lost_is_told_with_the_way_out(notebook: Notebook) -> None:
    assert "the other ranks go on; %mesh heal (or mesh.heal()) puts it back" in notebook.text(
        "%%mesh\nimport os\nif rank: os._exit(3)"
    )
    assert "rank 1 started anew" in notebook.text("%mesh heal")


def test_a_mesh_that_has_ended_says_so_where_it_is_shown(notebook: Notebook) -> None:
    notebook.run("%mesh start brief --procs 1")
    notebook.run("kept = mesh")
    notebook.run("%mesh use hour")
    ended = subprocess.run(
        [sys.executable, "-m", "monarch_nb", "stop", "brief"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "has ended" in ended.stdout
    shown = notebook.text("kept")
    assert re.match(r"mesh 'brief' (has ended|was stopped by monarch_nb \(pid \d+\))", shown), shown
    assert "%mesh start brief" in shown
    assert "Traceback" not in shown and "File" not in shown
    notebook.run("%mesh start brief --procs 1\nleft = [mesh]\n%mesh detach brief")
    assert (
        notebook.text("left[0]")
        == "this notebook has left mesh 'brief'. Come back, if it still runs: %mesh attach brief"
    )
    notebook.run("%mesh attach brief\nmine = [mesh]\n%mesh stop brief")
    assert (
        notebook.text("mine[0]")
        == "mesh 'brief' has ended: it was stopped. Start one anew: %mesh start brief"
    )
