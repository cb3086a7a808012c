"""Waiting for what has no event of its own: asked again and again, up to a bound that only a fault
reaches.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from processes import PATIENCE_S

Found = TypeVar("Found")


def wait_until(condition: Callable[[], Found], what: str, timeout_s: float = PATIENCE_S) -> Found:
    """Return what `condition` finds as soon as it's true.

    Raises:
        AssertionError: that says what never came.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.thread_time()
        if found := condition():
            return found
        assert time.monotonic() < deadline, f"never: {what}"
        # What takes long to ask is asked less often: what is waited for needs the processor.
        time.sleep(min(max(0.005, 10 * (time.thread_time() - began)), 0.2))


def ask_until(ask: Callable[[], Found], wanted: Callable[[Found], object], what: str) -> Found:
    """Return the first answer that is wanted, whatever it is.

    Raises:
        AssertionError: that says what never came, and the last answer.
    """
    answers: list[Found] = []

    def look() -> object:
        answers[:] = [ask()]
        return wanted(answers[0])

    try:
        wait_until(look, what)
    except AssertionError as error:
        raise AssertionError(f"{error}; last:\n{answers[0]}") from None
    return answers[0]


def wait_for_server(server: subprocess.Popen[bytes], runtime: Path, log: Path) -> int:
    """Return the port of a Jupyter server once it listens: the file that names the port is written before.

    Args:
        runtime: its JUPYTER_RUNTIME_DIR.
        log: what it writes, shown if it doesn't start.
    """
    file = runtime / f"jpserver-{server.pid}.json"

    def listens() -> int:
        assert server.poll() is None, log.read_text()
        with suppress(OSError, ValueError):
            port = int(json.loads(file.read_text())["port"])
            socket.create_connection(("127.0.0.1", port)).close()
            return port
        return 0

    return wait_until(listens, f"a server that listens; it wrote: {log.read_text()}", PATIENCE_S * 4)
