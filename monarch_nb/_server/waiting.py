"""Commands that wait for hosts of an engine, and start ranks on them: each is a process that outlives the
server, so neither a closed page nor a server that ends stops the wait.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from monarch_nb._server.starting import PROGRAM, environment, why_not


class WaitingStart:
    """A command that starts a mesh once its hosts are there. Owned by the event loop's thread.

    Not one of asyncio's processes: those are killed with the loop that has started them.

    Args:
        arguments: of `monarch-nb`.
        directory: the working directory of the ranks.
        on_end: called once the command has ended; with why the mesh didn't start, or an empty text.
    """

    def __init__(
        self, arguments: Sequence[str], directory: str, on_end: Callable[[WaitingStart, str], None]
    ) -> None:
        self._loop, self._on_end = asyncio.get_running_loop(), on_end
        # A file: what the command leaves running, a controller, holds its standard error open.
        self._error = tempfile.TemporaryFile()  # noqa: SIM115 - it's read when the command has ended
        self._process = subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=directory,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._error,
            start_new_session=True,
        )
        self.ended: asyncio.Future[str] = self._loop.create_future()
        # A daemon: a server that ends doesn't wait for a queue.
        threading.Thread(target=self._read, name=f"monarch-nb start {self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id of the command."""
        return self._process.pid

    def _read(self) -> None:
        status = self._process.wait()
        with self._error as file:
            file.seek(0)
            error = file.read()
        with suppress(RuntimeError):  # the server is closing
            self._loop.call_soon_threadsafe(self._tell_end, why_not(error, status) if status else "")

    def _tell_end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)
        self._on_end(self, why)
