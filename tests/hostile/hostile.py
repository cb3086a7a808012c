"""What all hostile tests share: how much of them runs, whether a text shows our own insides, what is left
behind.
"""

from __future__ import annotations

import os
import queue
import random
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kernel_managers import ipc_manager
from processes import PATIENCE_S, mesh_processes, wait_for_exit

FULL = os.environ.get("MONARCH_NB_HOSTILE") == "full"
SEED = int(os.environ.get("MONARCH_NB_HOSTILE_SEED", "14"))
TRIES: Counter[str] = Counter()
"""What has been tried and held so far: it ended, its words were no raw traceback, and what it was done to
works on.
"""
_OWN_FRAME = re.compile(r"(File |^)\S*/monarch_nb/\S+\.py\S*[:,] ?(line )?\d+", re.MULTILINE)
_OWN_TROUBLE = (
    "That's a fault of monarch_nb",
    "TransportClosed",
    "zmq.error",
    'Traceback (most recent call last):\n  File "<frozen',
)


def num_tries(short: int, full: int) -> int:
    return full if FULL else short


def tried(what: str, num: int = 1) -> None:
    """Count tries that held."""
    TRIES[what] += num


def generator(name: str) -> random.Random:
    """Return a generator of random numbers, the same in each run."""
    return random.Random(f"{name} {SEED}")


def insides_in(text: str) -> str:
    """Return what of our own insides a text shows to people; empty if nothing."""
    found = _OWN_FRAME.search(text)
    if found:
        return found[0]
    return next((word for word in _OWN_TROUBLE if word in text), "")


@contextmanager
def nothing_left(*, directories: bool = False) -> Iterator[None]:
    """Fail if processes of what the block starts outlive it, or (unless `directories` may stay) where their
    sockets were. Segments have no names.

    What is left is ended: it does no harm to other tests.
    """
    before, runtime = set(mesh_processes()), os.environ.get("XDG_RUNTIME_DIR")
    with tempfile.TemporaryDirectory(prefix="mnb-") as own:
        os.environ["XDG_RUNTIME_DIR"] = own
        try:
            yield
            for pid in set(mesh_processes()) - before:
                assert wait_for_exit(pid, PATIENCE_S), f"{mesh_processes().get(pid)} (pid {pid}) is left"
            left = mesh_directories(Path(own))
            assert directories or not left, f"sockets are left: {_with_contents(left)}"
        finally:
            _end(set(mesh_processes()) - before)
            os.environ.pop("XDG_RUNTIME_DIR")
            if runtime is not None:
                os.environ["XDG_RUNTIME_DIR"] = runtime


def _end(pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_for_exit(pid)


def mesh_directories(runtime: Path) -> list[str]:
    root = runtime / "monarch_nb"
    return sorted(str(p) for p in root.iterdir()) if root.is_dir() else []


def remove_sockets() -> None:
    """Remove what killed processes have left to the next start."""
    for left in mesh_directories(Path(os.environ["XDG_RUNTIME_DIR"])):
        shutil.rmtree(left, ignore_errors=True)


def _with_contents(directories: list[str]) -> str:
    return ", ".join(
        str(path) for directory in directories for path in (Path(directory), *Path(directory).rglob("*"))
    )


class Hang(AssertionError):
    """Something hasn't ended in time."""


class Shown:
    """What a cell has left in a notebook: its text, its size, and whether it ended with an error.

    What comes late changes the output of the cell that it belongs to, wherever that stands; the news of it
    come as part of the cell that runs then.
    """

    def __init__(self) -> None:
        self.text = ""
        self.num_bytes = 0
        self.is_error = False
        self._displays: set[str] = set()

    def take(self, kind: str, content: dict[str, Any]) -> None:
        """Take a message of the kernel's."""
        if kind == "error":
            self.is_error = True
            self.text += "\n".join(content["traceback"]) + "\n"
        elif kind == "stream":
            self.text += content["text"]
        elif kind in ("display_data", "update_display_data", "execute_result"):
            display = content.get("transient", {}).get("display_id")
            if kind == "update_display_data" and display not in self._displays:
                return  # of another cell
            self._displays.add(display)
            self.text += content["data"].get("text/plain", "") + "\n"
        else:
            return
        self.num_bytes = max(self.num_bytes, len(str(content)))  # an update takes the place of what was there


class Kernel:
    """A notebook's kernel, whose cells may hang: then it's killed, with the meshes that it has started."""

    def __init__(self, folder: Path, patience_s: float = 60.0) -> None:
        self._patience_s = patience_s
        self._before = set(mesh_processes())
        self._manager = ipc_manager(kernel_name="python3")
        self._manager.start_kernel(cwd=str(folder))
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE_S * 8)
        self.run("%load_ext monarch_nb")

    @property
    def pid(self) -> int:
        return int(self._manager.provisioner.pid)

    def run(self, source: str) -> Shown:
        """Run a cell.

        Raises:
            Hang: if it doesn't end.
        """
        cell = self._client.execute(source, store_history=True, allow_stdin=False)
        shown = Shown()
        until = time.monotonic() + self._patience_s
        while True:
            try:
                if time.monotonic() > until:
                    raise queue.Empty
                message = self._client.get_iopub_msg(timeout=max(0.1, until - time.monotonic()))
            except queue.Empty:
                raise Hang(
                    f"still running after {self._patience_s:g} s:\n{source[:2000]}\nshown so far:\n"
                    f"{shown.text[-2000:]}"
                ) from None
            if message["parent_header"].get("msg_id") == cell:
                if message["content"].get("execution_state") == "idle":
                    return shown
                shown.take(message["msg_type"], message["content"])

    def close(self) -> None:
        """End it in good order; what it has started ends by itself."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=False)

    def kill(self) -> None:
        """End it at once, and what it has started."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        _end(set(mesh_processes()) - self._before)
        remove_sockets()
