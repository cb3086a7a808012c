"""Run a tutorial from the top and print what a reader would see: `python run_headless.py NOTEBOOK`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def show(output: Any) -> str:
    """Return one output as text."""
    if output.output_type == "stream":
        return str(output.text).rstrip()
    if output.output_type == "error":
        return ANSI.sub("", "\n".join(output.traceback)).rstrip()
    return str(output.data.get("text/plain", "")).rstrip()


def main(path: Path) -> int:
    """Run the notebook; return 1 if a cell failed that isn't meant to."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": path.parent}})
    client.km = client.create_kernel_manager()
    client.km.transport = "ipc"
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "markdown":
                print(f"\n{cell.source}\n")
                continue
            print("\n".join(f">>> {line}" for line in cell.source.splitlines()))
            client.execute_cell(cell, index)
            for output in cell.outputs:
                print(show(output))
    print(f"\n{path.name}: all cells ran")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
