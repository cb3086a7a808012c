"""The mesh outlives its kernels: what ran goes on, what was missed is shown once, and it's all in the
journal.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from kernels import FileLatch, Notebook, Signal
from processes import mesh_processes, wait_for_exit


def command(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "monarch_nb", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return result.stdout + result.stderr


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def lasting() -> Iterator[str]:
    """A mesh of two ranks that a kernel has started and left."""
    first = Notebook()
    first.run("%load_ext monarch_nb\n%mesh start lasting --procs 2")
    first.run("%%mesh\nimport time\nstate = 40 + rank\nprint('first')")
    first.run(
        "from monarch_nb.actor import Actor, endpoint\nclass Counter(Actor):\n    def "
        "__init__(self): self.value = 0\n    @endpoint\n    def add(self, by):\n        self.value "
        "+= by\n        print('now', self.value)\n        return self.value\nmesh.spawn('counter', "
        "Counter).add.call(2).get()"
    )
    first.close()
    yield "lasting"
    assert "has ended" in command("stop", "lasting")


def test_the_command_line_finds_it(lasting: str) -> None:
    assert re.search(r"lasting +2 \(procs=2\) +ok .* controller pid \d+", command("list"))
    assert "idle      ranks 0-1" in command("status", lasting)
    assert json.loads(command("status", lasting, "--json"))["name"] == lasting
    assert command("exec", lasting, "print('there')\nstate").splitlines() == [
        "[0-1] there",
        "[0] 40",
        "[1] 41",
    ]
    assert command("exec", lasting, "1 / 0", "--ranks", "1").count("ZeroDivisionError") >= 1
    assert "[0-1] there" in command("logs", lasting, "--grep", "th.re")
    assert "first" not in command("logs", lasting, "--grep", "th.re")
    assert "lasting" in command("history", lasting) or "print('there')" in command("history", lasting)


def test_a_new_kernel_finds_variables_and_actors(lasting: str, notebook: Notebook) -> None:
    assert "mesh 'lasting' runs" in notebook.text("%load_ext monarch_nb")
    assert "attached to mesh 'lasting' (procs=2: ranks 0-1)" in notebook.text("%mesh attach lasting")
    assert notebook.text("%%mesh\nstate + 1") == "[0] 41\n[1] 42"
    assert "counter on ranks 0-1" in notebook.text("mesh.actors")
    assert notebook.text("type(mesh.actors['counter']).__name__, mesh.actors['counter']._class.__name__") == (
        "('ActorMesh', 'Counter')"
    )
    text = notebook.text("list(mesh.actors['counter'].add.call(5).get().values())")
    assert sorted(text.splitlines()) == ["[0-1] now 7", "[7, 7]"]
    assert "no actor 'nobody' runs on mesh 'lasting'; there are: counter" in notebook.text(
        "mesh.actors['nobody']"
    )


def test_what_was_missed_is_shown_once(lasting: str, tmp_path: Path, notebook: Notebook) -> None:
    go, begun = FileLatch(tmp_path / "go"), Signal(tmp_path / "begun")
    left = Notebook()
    left.run("%load_ext monarch_nb\n%mesh attach lasting")
    left.run(
        f"%%mesh --async\nprint('step 1')\nif rank == 0: {begun.source}\n"
        f"{go.source}\nprint('step 2')\nrank * 100"
    )
    begun.wait()
    left.close()
    assert "1 cell is still running" in notebook.text("%load_ext monarch_nb")
    text = notebook.text("%mesh attach lasting")
    assert "still running" in text
    assert "[0-1] step 1" in text
    assert "step 2" not in text
    go.open()
    text = notebook.text("%mesh result " + re.search(r"#(\d+)", text)[1])  # type: ignore[index]
    assert text.splitlines() == ["[0-1] step 1", "[0-1] step 2", "[0] 0", "[1] 100"]
    later = Notebook()
    assert "still running" not in later.text("%load_ext monarch_nb")
    assert later.text("%mesh attach lasting").splitlines() == [
        "attached to mesh 'lasting' (procs=2: ranks 0-1)"
    ]
    later.close()


def test_cells_that_ended_meanwhile_are_replayed_in_order(
    lasting: str, tmp_path: Path, notebook: Notebook
) -> None:
    go, begun = FileLatch(tmp_path / "go"), Signal(tmp_path / "begun")
    left = Notebook()
    left.run("%load_ext monarch_nb\n%mesh attach lasting")
    left.run(f"%%mesh --async\nif rank == 0: {begun.source}\n{go.source}\nprint('one')")
    left.run("%%mesh --async\nprint('two', rank)\nif rank == 1: raise ValueError('late')")
    begun.wait()
    left.close()
    go.open()
    while "running" in command("history", "lasting", "--last", "2"):
        pass
    assert "2 cells ended meanwhile, 1 failed" in notebook.text("%load_ext monarch_nb")
    text = notebook.text("%mesh attach lasting")
    positions = [
        text.index(part) for part in ("[0-1] one", "[0] two 0", "[1] two 1", "rank 1: ValueError: late")
    ]
    assert positions == sorted(positions)


def test_two_notebooks_at_once(lasting: str, notebook: Notebook) -> None:
    other = Notebook()
    for each in (notebook, other):
        each.run("%load_ext monarch_nb\n%mesh attach lasting")
    notebook.run("%%mesh\nshared = rank + 7\nprint('only here')")
    assert other.text("%%mesh\nshared") == "[0] 7\n[1] 8"
    other.close()
    assert notebook.text("%%mesh\n'still here'") == "[0-1] 'still here'"


def test_each_call_of_a_script_is_in_the_journal(lasting: str) -> None:
    script = (
        "import monarch_nb\nadd = monarch_nb.attach('lasting').actors['counter'].add\n"
        "for _ in range(102): add.call(0).get()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    script = (
        "import json, monarch_nb\nhistory = monarch_nb.attach('lasting').history()\n"
        "print(json.dumps([dict(e.details) for e in history if e.kind == 'calls'][-1]))"
    )
    entry = json.loads(subprocess.check_output([sys.executable, "-c", script], timeout=60))
    (row,) = entry["calls"]
    assert (row["endpoint"], row["ranks"], row["num"], row["num_failed"]) == ("counter.add", "0-1", 102, 0)
    assert len(row["each"]) == 100
    for each in row["each"]:
        assert set(each["seconds"]) == {"0", "1"} and each["when"] >= row["when"]
    assert entry["who"].startswith("-c (pid")


def test_a_dropped_call_that_failed_is_none_that_is_ok(lasting: str, notebook: Notebook) -> None:
    notebook.run("%load_ext monarch_nb\n%mesh attach lasting")
    notebook.run(
        "future = mesh.actors['counter'].add.call('no number')\ntry: future.get()\nexcept Exception: pass"
    )
    line = notebook.text("%mesh history").splitlines()[-1]
    assert "counter.add x1" in line and " error " in line


def test_history_rerun_and_export(lasting: str, notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("%load_ext monarch_nb\n%mesh attach lasting")
    notebook.run("%%mesh --ranks 1\nvalue = state\nprint('value', value)\nvalue")
    notebook.run("%%mesh\nraise KeyError('k')")
    notebook.run("mesh.actors['counter'].add.call(0).get()")
    text = notebook.text("%mesh history")
    assert re.search(r"#1 +\d\d:\d\d:\d\d +start", text)
    assert re.search(
        r"\[1\] +ok +[\d.]+ (us|ms|s) +value = state \(\+2 lines\) +— notebook \(pid \d+\)", text
    )
    assert re.search(r"\[0-1\] +error .*raise KeyError", text)
    assert "counter.add x1" in text
    calls = re.findall(r"#(\d+) .*counter.add x1", text)[-1]
    assert re.search(
        r"counter.add x1 on ranks 0-1\n    \d\d:\d\d:\d\d\.\d{3} seconds: \[0\] [\de.-]+, \[1\] [\de.-]+$",
        notebook.text(f"%mesh history {calls}"),
    )
    number = re.findall(r"#(\d+) .*value = state", text)[-1]
    assert notebook.text(f"%mesh rerun {number}") == "[1] value 41\n[1] 41"
    assert notebook.text(f"%mesh rerun #{number} --ranks 0") == "[0] value 40\n[0] 40"
    assert "has no entry #9999; see %mesh history" in notebook.text("%mesh rerun 9999")
    assert "is no cell but start" in notebook.text("%mesh rerun 1")
    assert "cells written to" in notebook.text(f"%mesh export {tmp_path}/out.ipynb")
    exported = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    nbformat.validate(exported)
    sources = [c.source for c in exported.cells]
    assert sources[0] == "%load_ext monarch_nb\n%mesh start lasting --dims procs=2"
    cell = next(c for c in exported.cells if c.source.startswith("%%mesh --ranks 1\nvalue = state"))
    assert cell.outputs[0].data["text/plain"] == "[1] value 41\n[1] 41"
    notebook.run(f"%mesh export {tmp_path}/out.py")
    script = (tmp_path / "out.py").read_text()
    assert "if rank in {1}:\n    value = state" in script
    assert "# raise KeyError('k')" in script
    compile(script, "out.py", "exec")
    assert "export to FILE.py or FILE.ipynb" in notebook.text("%mesh export out.txt")


def test_logs_are_followed(lasting: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "monarch_nb", "logs", "lasting", "--follow", "--grep", "followed"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    command("exec", "lasting", "print('not this')\nprint('followed', 1)")
    assert process.stdout.readline() == "[0-1] followed 1\n"
    process.send_signal(2)
    assert process.wait(30) == 0
    process.stdout.close()


def test_the_lease_counts_running_cells_and_can_be_extended(tmp_path: Path) -> None:
    go, begun = FileLatch(tmp_path / "go"), Signal(tmp_path / "begun")
    left = Notebook()
    left.run("%load_ext monarch_nb\n%mesh start leased --procs 1 --idle-timeout 1h")
    assert "ends after 0.3 s without a client and a running cell" in left.text("%mesh lease 0.3s")
    assert "0.3 s" in left.text("%mesh status")
    controller = int(left.text("mesh.status().pid"))
    left.run(f"%%mesh --async\n{begun.source}\n{go.source}")
    begun.wait()
    left.close()
    assert not wait_for_exit(controller, 1.5), "a mesh with a running cell isn't idle"
    go.open()
    assert wait_for_exit(controller)
    assert controller not in mesh_processes()
    assert re.search(r"#2 .* ok ", command("history", "leased")), "the journal outlives the mesh"


def test_a_stale_connection_file_is_told(notebook: Notebook) -> None:
    notebook.run("%load_ext monarch_nb")
    path = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "monarch_nb-stale.json"
    path.write_text(
        json.dumps({"name": "stale", "pid": 2**22 - 3, "directory": "/nowhere", "wire_version": 1})
    )
    assert "mesh 'stale' is not running. Start it: %mesh start stale" in notebook.text("%mesh attach stale")
    assert not path.exists()


def test_another_version_is_told(notebook: Notebook, lasting: str) -> None:
    notebook.run("%load_ext monarch_nb")
    runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
    content = json.loads((runtime / "monarch_nb-lasting.json").read_text())
    (runtime / "monarch_nb-older.json").write_text(
        json.dumps({**content, "name": "older", "wire_version": 0})
    )
    text = notebook.text("%mesh attach older")
    assert "mesh 'older' runs with another version of monarch_nb" in text
    assert f"end it: kill {content['pid']}" in text
    (runtime / "monarch_nb-older.json").unlink()


def test_a_stopped_mesh_is_told(notebook: Notebook) -> None:
    notebook.run("%load_ext monarch_nb\n%mesh start shortlived --procs 1")
    command("stop", "shortlived")
    text = notebook.text("%%mesh\n1")
    assert (
        "MeshEnded: mesh 'shortlived' was stopped by " in text
        and "start it anew: %mesh start shortlived" in text
    )
