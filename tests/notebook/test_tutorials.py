"""The tutorial about restarting the kernel, with a real restart where it asks for one."""

from __future__ import annotations

from pathlib import Path

import nbformat
from kernels import Notebook

TUTORIAL = Path(__file__).parents[2] / "notebooks" / "04_restart_the_kernel.ipynb"


def test_the_kernel_is_restarted_in_the_middle() -> None:
    cells = [c for c in nbformat.read(TUTORIAL, as_version=4).cells if c.cell_type == "code"]
    notebook = Notebook()
    texts: dict[str, str] = {}
    for cell in cells:
        if "restart-kernel" in cell.metadata.get("tags", []):
            notebook.restart()
        texts[cell.source] = notebook.text(cell.source)
        assert "ERROR" not in texts[cell.source], texts[cell.source]
    notebook.close()
    assert "mesh 'study' runs: 1 cell is still running" in texts["%load_ext monarch_nb"]
    assert texts["%mesh attach study"].startswith("attached to mesh 'study' (procs=4: ranks 0-3)\n#4 In[")
    assert texts["%mesh result"].endswith("[0-3] 'trained'")
    assert next(t for s, t in texts.items() if "len(losses)" in s) == "[0-3] (40, True)"
    assert "written before the restart" in next(t for s, t in texts.items() if "mesh.actors[" in s)
    assert texts["%mesh rerun 2 --ranks 0"] == "[0] model with 9 parameters"
    assert texts["%mesh stop"] == "mesh 'study' has ended"
