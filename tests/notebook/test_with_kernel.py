"""Whose end a mesh's is: its kernel's, if that is wanted or a program runs the notebook; else its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from kernels import Notebook
from processes import wait_for_exit

BY_PROGRAM = (
    "with this kernel, because a program runs this notebook (nbclient, papermill, nbconvert): --keep "
    "lets it go on"
)


def listed() -> str:
    return subprocess.run(
        [sys.executable, "-m", "monarch_nb", "list"], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def written(path: Path, *cells: str) -> Path:
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(
        nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(c) for c in cells], metadata={"kernelspec": spec}
        ),
        path,
    )
    return path


def ran(*command: str) -> None:
    kept = {k: v for k, v in os.environ.items() if k != "MONARCH_NB_WITH_KERNEL"}
    environment = {**kept, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr


def outputs(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [
        "".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in c.outputs) for c in cells
    ]


@pytest.mark.parametrize("runner", ["papermill", "nbconvert"])
def test_a_mesh_of_a_run_ends_with_the_run(runner: str, tmp_path: Path) -> None:
    pytest.importorskip(runner)
    cells = ("%load_ext monarch_nb\n%mesh start of-run --procs 1", "%mesh status", "print(mesh.status().pid)")
    file = written(tmp_path / "a.ipynb", *cells)
    if runner == "papermill":
        ran("papermill", str(file), str(tmp_path / "out.ipynb"), "--no-progress-bar")
    else:
        ran("nbconvert", "--to", "notebook", "--execute", str(file), "--output", "out.ipynb")
    started, status, controller = outputs(tmp_path / "out.ipynb")
    assert BY_PROGRAM in started
    assert "ends with its kernel (pid " in status
    assert wait_for_exit(int(controller))
    assert "of-run" not in listed()


def test_it_can_be_kept(tmp_path: Path) -> None:
    pytest.importorskip("nbconvert")
    file = written(tmp_path / "a.ipynb", "%load_ext monarch_nb\n%mesh start kept --procs 1 --keep")
    ran("nbconvert", "--to", "notebook", "--execute", str(file), "--output", "out.ipynb")
    assert "it ends after 8 h without a client and a running cell" in outputs(tmp_path / "out.ipynb")[0]
    assert "kept" in listed()
    ran("monarch_nb", "stop", "kept")


def test_a_person_has_it_only_if_wanted() -> None:
    notebook = Notebook()
    try:
        assert (
            "it ends with this kernel\n"
            in notebook.text("%load_ext monarch_nb\n%mesh start mine --procs 1 --with-kernel") + "\n"
        )
        controller = int(notebook.text("print(mesh.status().pid)"))
        assert notebook.text("%%mesh\nrank") == "0"
        notebook.restart()
        assert wait_for_exit(controller)
        assert "mesh 'mine' runs" not in notebook.text("%load_ext monarch_nb")
        notebook.run("import monarch_nb\nmesh = monarch_nb.start('python', {'procs': 1}, with_program=True)")
        controller = int(notebook.text("print(mesh.status().pid)"))
    finally:
        notebook.close()
    assert wait_for_exit(controller)


@pytest.mark.parametrize(("message", "wanted"), [("1", "True"), ("0", "False")])
def test_the_environment_decides(message: str, wanted: str) -> None:
    source = "from monarch_nb._client.unattended import is_run_by_a_program as f; print(f())"
    environment = {**os.environ, "MONARCH_NB_WITH_KERNEL": message}
    assert (
        subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=True, env=environment
        ).stdout.strip()
        == wanted
    )
