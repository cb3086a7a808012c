"""Run a tutorial from the top and print what a reader would see: `python run_headless.py NOTEBOOK`."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def show(output: Any) -> str:
    """Return one output as text."""
    if output.output_type == "stream":
        return str(output.text).rstrip()
    if output.output_type == "error":
        return ANSI.sub("", "\n".join(output.traceback)).rstrip()
    return str(output.data.get("text/plain", "")).rstrip()


def run_cell(client: NotebookClient, cell: Any, index: int) -> None:
    """Run one cell and print it with what it shows."""
    if cell.cell_type == "markdown":
        print(f"\n{cell.source}\n")
        return
    print("\n".join(f">>> {line}" for line in cell.source.splitlines()))
    try:
        client.execute_cell(cell, index)
    except CellExecutionError:
        if "NBVAL_RAISES_EXCEPTION" not in cell.source:
            raise
    for output in cell.outputs:
        print(show(output))


def main(path: Path) -> int:
    """Run the notebook.

    Raises:
        CellExecutionError: if a cell fails that isn't meant to.
    """
    notebook = nbformat.read(path, as_version=4)
    sockets = tempfile.TemporaryDirectory()
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets.name}/kernel")
    client = NotebookClient(notebook, km=manager, timeout=120)
    try:
        with client.setup_kernel():
            for index, cell in enumerate(notebook.cells):
                run_cell(client, cell, index)
    finally:
        manager.shutdown_kernel(now=True)
        sockets.cleanup()
    print(f"\n{path.name}: all cells ran")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
