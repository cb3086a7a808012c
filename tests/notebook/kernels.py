"""A notebook without a browser: a real kernel that runs cells one by one."""

from __future__ import annotations

import os
import re
import select
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
from kernel_managers import ipc_manager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Notebook:
    """A kernel that runs cells one by one."""

    def __init__(self, timeout_s: float = 90) -> None:
        self._notebook = nbformat.v4.new_notebook()
        self._manager = ipc_manager(kernel_name="python3")
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
            assert any(output.output_type == "error" for output in cell.outputs)
        return list(cell.outputs)

    @property
    def cells(self) -> list[Any]:
        """The cells so far, with what they show by now."""
        return list(self._notebook.cells)

    def text(self, source: str) -> str:
        """Run a cell; return what it shows as text."""
        return shown(self.run(source))

    def interrupt(self) -> None:
        """Press the stop button."""
        self._manager.interrupt_kernel()

    def text_interrupted(self, source: str, fifo: str, num_presses: int = 1) -> str:
        """Run a cell and press the stop button once a rank has opened `fifo` for writing; return what the
        cell shows.
        """

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


class Messages:
    """The messages of a kernel, looked at one by one: which cell does an output belong to?"""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.client.start_channels()
        self.begin_anew()
        self._texts: dict[str, list[tuple[str, str]]] = {}
        self._displays: dict[str, str] = {}

    def start(self, source: str) -> str:
        """Send a cell; return its id."""
        return str(self.client.execute(source))

    def finish(self, cell: str) -> None:
        """Take messages until a cell is over."""
        while self._take(60) != (cell, "idle"):
            pass

    def run(self, source: str) -> str:
        """Run a cell; return its id."""
        cell = self.start(source)
        self.finish(cell)
        return cell

    def wait_for(self, cell: str, text: str, timeout_s: float = 30) -> None:
        """Take messages until a cell shows a text."""
        while text not in self.text(cell):
            self._take(timeout_s)

    def text(self, cell: str) -> str:
        """Return what a cell shows by now."""
        return "\n".join(text for _, text in self._texts.get(cell, []))

    def _take(self, timeout_s: float) -> tuple[str, str]:
        return self.take(self.client.get_iopub_msg(timeout=timeout_s))

    def take(self, message: Any) -> tuple[str, str]:
        """Note what a message shows; return whose it is, and the state of the kernel that it tells."""
        parent = message["parent_header"].get("msg_id", "")
        content = message["content"]
        if message["msg_type"] in ("display_data", "update_display_data", "execute_result"):
            self._show(content, parent)
        elif message["msg_type"] == "stream":
            self._texts.setdefault(parent, []).append(("", content["text"]))
        elif message["msg_type"] == "error":
            self._texts.setdefault(parent, []).append(("", "\n".join(content["traceback"])))
        return parent, content.get("execution_state", "")

    def _show(self, content: Any, parent: str) -> None:
        """Put a display into its cell, in place of the one that it updates: updates belong where the first
        one was shown.
        """
        display = content.get("transient", {}).get("display_id") or ""
        shown = self._texts.setdefault(self._displays.setdefault(display, parent) if display else parent, [])
        text = content["data"].get("text/plain", "")
        places = [i for i, (known, _) in enumerate(shown) if display and known == display]
        if places:
            shown[places[0]] = (display, text)
        else:
            shown.append((display, text))

    def run_text(self, source: str) -> str:
        """Run a cell; return what it shows."""
        return self.text(self.run(source))

    def take_the_rest(self) -> None:
        """Take what a kernel that is shut down still says."""
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["msg_type"] == "shutdown_reply":
                return
            self.take(message)

    def begin_anew(self) -> None:
        """Wait until a new kernel answers, and what it shows comes here. `wait_for_ready` gives a loaded
        machine too little time.
        """
        deadline = time.monotonic() + 60
        asked, shown = "", False
        while not shown:
            assert time.monotonic() < deadline, "the kernel doesn't answer"
            asked = asked or self.client.kernel_info()
            with suppress(Empty):
                while self.client.get_shell_msg(timeout=1)["parent_header"].get("msg_id") != asked:
                    pass
                asked, wanted = "", asked
                while not shown:
                    shown = self.client.get_iopub_msg(timeout=0.5)["parent_header"].get("msg_id") == wanted


class RawKernel(Messages):
    """A kernel of its own."""

    def __init__(self) -> None:
        self.manager = ipc_manager(kernel_name="python3")
        self.manager.start_kernel()
        super().__init__(self.manager.client())

    def show(self, source: str) -> str:
        """Run a cell; return what it shows."""
        return self.text(self.run(source)).strip("\n")

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Signal:
    """A rank says that it has come to some point; the test waits for it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    @property
    def source(self) -> str:
        """An expression that gives the signal."""
        return f"open({self.path!r}, 'w').write('x')"

    def wait(self, timeout_s: float = 60) -> None:
        """Wait until a rank has given it."""
        assert select.select([self._fd], [], [], timeout_s)[0], f"nobody has written to {self.path}"
        os.close(self._fd)


class FileLatch:
    """A file that ranks wait for, until the test creates it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def source(self) -> str:
        """A statement that waits."""
        return f"import os, time\nwhile not os.path.exists({str(self._path)!r}): time.sleep(0.01)"

    def open(self) -> None:
        """Create the file, so that the ranks continue."""
        self._path.touch()


def shown(outputs: list[Any]) -> str:
    """Return what outputs show as text. What is written together may come in pieces."""
    parts: list[str] = []
    for before, output in zip([None, *outputs], outputs, strict=False):
        if output.output_type == "stream":
            if before is not None and before.output_type == "stream" and before.name == output.name:
                parts[-1] += output.text
            else:
                parts.append(output.text)
        elif output.output_type == "error":
            parts.append("ERROR " + ANSI.sub("", "\n".join(output.traceback)))
        else:
            parts.append(output.data.get("text/plain", ""))
    return "\n".join(p.rstrip("\n") for p in parts)
