"""The recovery loop as people write it, as a script and in a notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kernels import Notebook

LOOP = """
import os, signal
import monarch_nb
from monarch_nb.exceptions import DeviceMeshError

def lose(rank):
    os.kill(list(mesh.execute(os.getpid).get().values())[rank], signal.SIGKILL)
    while mesh.healthy():
        pass

num_healed = 0
for batch in range(6):
    if batch == 2:
        lose(1)
    try:
        result = mesh.execute(lambda x: x * 2, batch)
    except DeviceMeshError:
        num_healed += 1
        monarch_nb.heal_mesh(mesh)
print("Job Complete", num_healed, mesh.healthy(), list(result.get().values()))
"""

WAITED = """
def double(x):
    if x == 3 and rank_of() == 1 and not os.path.exists(mark):
        open(mark, "w").close()
        os._exit(9)
    return x * 2

def rank_of():
    from monarch_nb.actor import current_rank
    return current_rank().rank

mark, batch, found = mark, 0, []
while batch < 6:
    try:
        found.append(next(mesh.execute(double, batch).get().values()))
        batch += 1
    except DeviceMeshError:
        monarch_nb.heal_mesh(mesh)
print("Job Complete", found)
"""


def test_the_recovery_loop_as_a_script(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    mark = tmp_path / "mark"
    start = "import monarch_nb\nmesh = monarch_nb.start('looped', {'gpus': 2}, with_program=True)\n"
    script.write_text(f"{start}{LOOP}mark = {str(mark)!r}\n{WAITED}mesh.stop().get()\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Job Complete 1 True [10, 10]" in done.stdout
    assert "Job Complete [0, 2, 4, 6, 8, 10]" in done.stdout and mark.exists()


def test_the_recovery_loop_in_a_notebook(tmp_path: Path) -> None:
    notebook = Notebook()
    try:
        notebook.run("%load_ext monarch_nb")
        notebook.run("%mesh start looped --gpus 2")
        assert notebook.text(LOOP).splitlines()[-1] == "Job Complete 1 True [10, 10]"
        assert "Job Complete [0, 2, 4, 6, 8, 10]" in notebook.text(
            f"mark = {str(tmp_path / 'm')!r}\n{WAITED}"
        )
        notebook.run("%%mesh --ranks 0\nimport os; os._exit(3)")
        refused = notebook.text("mesh.execute(print)")
        assert "ERROR" in refused and "1 of 2 ranks is dead; nothing was called" in refused
    finally:
        notebook.run("%mesh stop looped")
        notebook.close()
