"""The road of a relay to another machine: a command, such as ssh with a forwarded socket, that is started
again whenever it ends.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from monarch_nb._host.loop import Loop
from monarch_nb._wire.process import die_with_parent

FIRST_AGAIN_S, LAST_AGAIN_S = 0.5, 10.0
"""How long the first and the later attempts wait."""
GOOD_S = 30.0
"""A command that has run so long has worked: the next attempt is a first one."""
END_S = 2.0


class Road:
    """The command that leads to another machine. Owned by the loop thread.

    Args:
        command: its words.
    """

    def __init__(self, loop: Loop, command: Sequence[str]) -> None:
        self._loop = loop
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._again_s = FIRST_AGAIN_S
        self._began = 0.0
        self._is_closed = False
        self._start()

    def _start(self) -> None:
        if self._is_closed:
            return
        self._began = self._loop.clock()
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent
            )
            fd = os.pidfd_open(self._process.pid)
        except OSError:
            self._later()
            return
        self._loop.watch_file(fd, lambda: self._ended(fd))

    def _ended(self, fd: int) -> None:
        self._loop.forget_file(fd)
        os.close(fd)
        if self._process is not None:
            self._process.wait()
        self._later()

    def _later(self) -> None:
        if self._loop.clock() - self._began > GOOD_S:
            self._again_s = FIRST_AGAIN_S
        self._loop.call_later(self._again_s, self._start)
        self._again_s = min(2 * self._again_s, LAST_AGAIN_S)

    def close(self) -> None:
        """End the command."""
        self._is_closed = True
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
