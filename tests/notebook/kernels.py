"""A notebook without a browser: a real kernel that runs cells one by one."""

from __future__ import annotations

import re
import threading
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Notebook:
    """A kernel that runs cells one by one."""

    def __init__(self, timeout_s: float = 90) -> None:
        self._notebook = nbformat.v4.new_notebook()
        self._manager = KernelManager(transport="ipc", kernel_name="python3")
        self._client = NotebookClient(self._notebook, km=self._manager, timeout=timeout_s)
        self._context = self._client.setup_kernel()
        self._context.__enter__()

    def run(self, source: str) -> list[Any]:
        """Run a cell; return its outputs. An error is an output, too."""
        cell = nbformat.v4.new_code_cell(source)
        self._notebook.cells.append(cell)
        try:
            self._client.execute_cell(cell, len(self._notebook.cells) - 1)
        except CellExecutionError:
            assert cell.outputs[-1].output_type == "error"
        return list(cell.outputs)

    def text(self, source: str) -> str:
        """Run a cell; return what it shows as text."""
        return shown(self.run(source))

    def interrupt(self) -> None:
        """Press the stop button."""
        self._manager.interrupt_kernel()

    def text_interrupted(self, source: str, fifo: str, num_presses: int = 1) -> str:
        """Run a cell and press the stop button once a rank has opened `fifo` for writing; return what the cell shows."""

        def press() -> None:
            with open(fifo) as file:
                for _ in range(num_presses):
                    file.readline()
                    self.interrupt()

        presser = threading.Thread(target=press, daemon=True)
        presser.start()
        text = self.text(source)
        presser.join(10)
        assert not presser.is_alive(), f"no rank said that it was ready: {text}"
        return text

    def restart(self) -> None:
        """Restart the kernel."""
        self._manager.restart_kernel(now=True)
        self._client.kc.wait_for_ready(timeout=60)

    def close(self) -> None:
        """End the kernel."""
        self._context.__exit__(None, None, None)
        self._manager.shutdown_kernel(now=True)
        assert not self._manager.is_alive()


def shown(outputs: list[Any]) -> str:
    """Return what outputs show as text."""
    parts = []
    for output in outputs:
        if output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type == "error":
            parts.append("ERROR " + ANSI.sub("", "\n".join(output.traceback)))
        else:
            parts.append(output.data.get("text/plain", ""))
    return "\n".join(p.rstrip("\n") for p in parts)
