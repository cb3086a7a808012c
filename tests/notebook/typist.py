"""A front end with a keyboard: a real kernel whose prompts are answered."""

from __future__ import annotations

import queue
import threading
from typing import Any

from kernel_managers import ipc_manager

PATIENCE_S = 60.0


class FrontEnd:
    """A kernel, and a client that talks to it message by message."""

    def __init__(self) -> None:
        self._manager = ipc_manager(kernel_name="python3")
        self._manager.start_kernel()
        self.client = self._manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_S)

    def close(self) -> None:
        self.client.stop_channels()
        self._manager.shutdown_kernel(now=True)


class Typist(FrontEnd):
    """A front end with a keyboard: answers the prompts of a cell with lines, and keeps what the cell
    shows.
    """

    def run(self, source: str, *lines: str | None, first: str = "") -> tuple[list[str], str]:
        """Run a cell; type a line at each prompt (None: press the stop button), once the prompt is `first`:
        ranks come one by one.

        Returns the prompts and what was shown.
        """
        self._first = first
        cell = self.client.execute(source, allow_stdin=True)
        done = threading.Event()
        prompts: list[str] = []
        typing = threading.Thread(target=self._type, args=(list(lines), prompts, done))
        typing.start()
        shown = self._watch(cell)
        done.set()
        typing.join()
        return prompts, shown

    def _type(self, lines: list[str | None], prompts: list[str], done: threading.Event) -> None:
        while not done.is_set():
            try:
                message = self.client.get_stdin_msg(timeout=0.2)
            except queue.Empty:
                continue
            if not prompts and self._first and message["content"]["prompt"] != self._first:
                self.client.input("list")
                continue
            prompts.append(message["content"]["prompt"])
            line = lines.pop(0) if lines else "quit"
            if line is None:
                self._manager.interrupt_kernel()
            else:
                self.client.input(line)

    def _watch(self, cell: str) -> str:
        parts: list[str] = []
        displays: dict[str, int] = {}
        while True:
            message: Any = self.client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return "\n".join(parts)
            if message["msg_type"] == "stream":
                parts.append(content["text"].rstrip("\n"))
            elif message["msg_type"] == "error":
                parts.append(f"{content['ename']}: {content['evalue']}")
            elif "data" in content:
                text, known = (
                    content["data"].get("text/plain", ""),
                    content.get("transient", {}).get("display_id", ""),
                )
                if known and known in displays:
                    parts[displays[known]] = text
                else:
                    displays[known] = len(parts)
                    parts.append(text)

    def restart(self) -> None:
        """Restart the kernel."""
        self._manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=PATIENCE_S)
