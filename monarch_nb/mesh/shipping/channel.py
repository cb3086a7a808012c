"""A channel for bytes through a command that runs a shell on another machine, which needs nothing of this
package.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import subprocess
import tempfile
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from monarch_nb._client.ssh import ssh_command
from monarch_nb._sync.env.arrival import MARK
from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb.exceptions import MeshUsageError

STALL_S = 60.0
"""How long the other side may read nothing."""
_BLOCK_BYTES = 1 << 16
_END_S = 10.0


def shell_command(machine: str, script: str) -> list[str]:
    """Return the command that runs a script of `sh` on a machine.

    Args:
        machine: the name of a host for ssh, or a command: `{script}` in it stands for one line of shell;
            without that, the words of the line are put behind it.

    Raises:
        MeshUsageError: if it names nothing.

    >>> shell_command("docker exec -i box", "exit 3")
    ['docker', 'exec', '-i', 'box', 'sh', '-c', 'exit 3']
    """
    line = ["sh", "-c", script]
    try:
        words = shlex.split(machine)
    except ValueError as error:
        raise MeshUsageError(f"sync: --to {machine!r} is no command: {error}") from None
    if not words:
        raise MeshUsageError("sync: --to names a host for ssh, or a command that runs a shell: --to host7")
    if "{script}" in machine:
        return [word.replace("{script}", shlex.join(line)) for word in words]
    if len(words) == 1 and "/" not in machine:
        return [*ssh_command(machine), shlex.join(line)]
    is_ssh = os.path.basename(words[0]) == "ssh"
    return [*words, shlex.join(line)] if is_ssh else [*words, *line]


class Channel:
    """A script that runs on another machine, with its input and the lines that it answers. One thread uses
    it.

    Raises:
        EnvironmentSyncError: if the command can't be started.
    """

    def __init__(self, machine: str, script: str) -> None:
        self._machine = machine
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the channel
        try:
            self._process = subprocess.Popen(
                shell_command(machine, script), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._errors.close()
            raise EnvironmentSyncError(f"{machine}: {error.strerror}: expected a command") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._in.fileno(), False)
        self._heard = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the script, if it hasn't ended."""
        self.finish()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S if kind is None else 1.0)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._errors.close()

    def write(self, data: bytes | memoryview) -> int:
        """Send bytes.

        Raises:
            BrokenPipeError: if the other side has ended, or takes no more.
            EnvironmentSyncError: if it takes nothing for long.
        """
        view = memoryview(data).cast("B")
        with selectors.DefaultSelector() as ready:
            ready.register(self._in, selectors.EVENT_WRITE)
            while len(view):
                if not ready.select(STALL_S):
                    raise EnvironmentSyncError(f"{self._machine} has taken nothing for {STALL_S:g} s")
                view = view[os.write(self._in.fileno(), view[: _BLOCK_BYTES * 16]) :]
        return memoryview(data).nbytes

    def finish(self) -> None:
        """Close the input."""
        with suppress(OSError):
            self._in.close()

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Return the command's answer, without what a login shell prints before it.

        Raises:
            EnvironmentSyncError: if the other side ends without an answer, or none comes in time.
        """
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as ready:
            ready.register(self._out, selectors.EVENT_READ)
            while True:
                while b"\n" in self._heard:
                    line, _, self._heard = self._heard.partition(b"\n")
                    if line.startswith(MARK):
                        found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                        return found
                if not ready.select(max(0.0, deadline - time.monotonic())):
                    raise EnvironmentSyncError(f"{self._machine} has given no answer within {timeout_s:g} s")
                block = os.read(self._out.fileno(), _BLOCK_BYTES)
                if not block:
                    raise EnvironmentSyncError(f"{self._machine}: {self.words()}")
                self._heard += block

    def wait_for_end(self, timeout_s: float = STALL_S) -> None:
        """Close the input, and wait for the end.

        Raises:
            EnvironmentSyncError: if it's an error, or doesn't come.
        """
        self.finish()
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise EnvironmentSyncError(f"{self._machine} has not ended within {timeout_s:g} s") from None
        if status:
            raise EnvironmentSyncError(f"{self._machine}: {self.words()}")

    def words(self) -> str:
        """Return the command's last error line, or how it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace").strip().splitlines()
        return errors[-1].strip() if errors else f"it has ended with status {self._process.poll()}"


def try_script(machine: str, script: str) -> None:
    """Run a script, ignoring its result."""
    with suppress(EnvironmentSyncError), Channel(machine, script) as channel:
        channel.wait_for_end()
