"""Kernel > Restart in JupyterLab while a cell runs on the ranks: it goes on, its old output says so, and
the next kernel shows the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from lab import Lab, Page

CELLS = [
    "%load_ext monarch_nb\n%mesh start left --procs 2",
    (
        "%%mesh\nimport os, time\nprint('step 1')\nwhile not os.path.exists('{gate}'): time.sleep(0.01)\n"
        "print('step 2')\n'the end'"
    ),
    "%load_ext monarch_nb\n%mesh attach left",
    "%mesh attach left",
    "%%mesh\nprint('as' 'leep')\ntime.sleep(600)",  # the source doesn't have the word that is waited for
    "%mesh stop",
]


def test_the_menu_restarts_the_kernel(lab: Lab, browser: Any, pictures: Path) -> None:
    page = Page(browser, lab, [c.replace("{gate}", f"{lab.root}/go") for c in CELLS], "left.ipynb")
    assert "is ready" in page.run(0)
    page.start(1)
    page.wait_for(1, "0 of 2 ranks done")
    page.page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.page.get_by_role("menuitem", name="Restart Kernel…").click()
    page.page.locator(".jp-Dialog button.jp-mod-accept").click()
    page.wait_for(1, "goes on in mesh")
    page.picture(pictures / "left.png")
    page.page.evaluate(
        "async () => { const s = jupyterapp.shell.currentWidget.sessionContext; while "
        "(s.session.kernel.status !== 'idle') await new Promise(f => setTimeout(f, 50)); await "
        "s.session.kernel.info; }"
    )

    assert "1 cell is still running" in page.run(2)
    page.wait_for(2, "step 1")
    assert "step 2" not in page.text(2)
    (lab.root / "go").touch()
    page.wait_for(2, "the end")
    page.wait_for(2, ", ended: import os, time")
    assert page.run(3).splitlines() == ["attached to mesh 'left' (procs=2: ranks 0-1)"]
    page.picture(pictures / "came_back.png")

    page.start(4)  # the stop button still stops
    page.wait_for(4, "asleep")
    page.execute("notebook:interrupt-kernel")
    page.wait_for(4, "ranks 0-1 were interrupted")
    page.wait_until_ended(4)
    assert "mesh 'left' has ended" in page.run(5)
    assert page.errors == []

    page.save()
    notebook = nbformat.read(lab.root / "left.ipynb", as_version=4)
    nbformat.validate(notebook)
    (output,) = notebook.cells[1].outputs
    assert output.data["text/plain"].startswith("[0-1] step 1\n")
    assert "this kernel was shut down at " in output.data["text/plain"]
    assert "goes on in mesh 'left'. See it: %mesh attach left" in output.data["text/html"]
    assert "interrupted" not in output.data["text/plain"]
    assert "monarch_nb" not in output.metadata
