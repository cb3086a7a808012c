"""What people see in JupyterLab: live output, the stop button, a restarted kernel, a saved notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from lab import Lab, Page

CELLS = [
    "%load_ext monarch_nb\n%mesh start seen --dims gpus=4 --init-process-group gloo",
    "%%mesh\nprint('epoch 1')\nprint('\\x1b[32mloss\\x1b[0m', 0.5 if rank < 3 else 0.75)\nrank // 2",
    (
        "%%mesh\nimport os, time\nprint('before')\nwhile not os.path.exists('{gate}'): time.sleep(0.01)\n"
        "print('after')"
    ),
    "%%mesh\nprint('asleep')\ntime.sleep(600)",
    "%%mesh\nif rank == 3:\n    raise FileNotFoundError('shard.bin')\nrank",
    "%%mesh --async\nprint('step 1')\nwhile not os.path.exists('{other}'): time.sleep(0.01)\nprint('step 2')",
    "%load_ext monarch_nb\n%mesh attach seen",
    "%%mesh\n'still here', rank",
    "%mesh vars\n",
    "%mesh stop",
]


@pytest.fixture(scope="module")
def page(lab: Lab, browser: Any) -> Page:
    cells = [c.replace("{gate}", f"{lab.root}/gate").replace("{other}", f"{lab.root}/other") for c in CELLS]
    return Page(browser, lab, cells, "seen.ipynb")


def test_a_session_as_people_have_it(lab: Lab, page: Page, pictures: Path) -> None:
    assert "mesh 'seen' (gpus=4: ranks 0-3) is ready" in page.run(0)
    assert page.run(1).splitlines() == [
        "[0-3] epoch 1",
        "[0-2] loss 0.5",
        "[3] loss 0.75",
        "[0-1] 0",
        "[2-3] 1",
    ]

    page.start(2)  # live: seen while the cell runs, and a bar after two seconds
    page.wait_for(2, "before")
    page.wait_for(2, "0 of 4 ranks done")
    assert "after" not in page.text(2).replace("%%mesh", "")
    page.picture(pictures / "running.png")
    (lab.root / "gate").touch()
    page.wait_for(2, "after")

    page.start(3)  # the stop button
    page.wait_for(3, "asleep")
    page.execute("notebook:interrupt-kernel")
    page.wait_for(3, "ranks 0-3 were interrupted")
    page.wait_until_ended(3)

    assert "rank 3: FileNotFoundError: shard.bin" in page.run(4)
    page.picture(pictures / "errors.png")

    page.run(5)  # a cell in the background, and a kernel that is restarted meanwhile
    page.wait_for(5, "step 1")
    page.page.evaluate("async () => { await jupyterapp.shell.currentWidget.sessionContext.restartKernel(); }")
    assert "1 cell is still running" in page.run(6)
    page.wait_for(6, "step 1")
    (lab.root / "other").touch()
    page.wait_for(6, "step 2")
    assert page.run(7).splitlines() == [f"[{r}] ('still here', {r})" for r in range(4)]
    page.run(8)
    page.picture(pictures / "attached.png")
    assert "mesh 'seen' has ended" in page.run(9)
    assert page.errors == []
    assert page.strangers == []


def test_the_saved_notebook_reads_without_us(lab: Lab, page: Page) -> None:
    page.save()
    notebook = nbformat.read(lab.root / "seen.ipynb", as_version=4)
    nbformat.validate(notebook)
    bundle = notebook.cells[1].outputs[0].data
    assert bundle["text/plain"].startswith("[0-3] epoch 1\n")
    assert "<script" not in bundle["text/html"]
    assert 'class="ansi-green-fg">loss</span>' in bundle["text/html"]
    assert "widgets" not in notebook.metadata
