"""Tunnels: commands that lead a socket of this machine to an address that only another one can reach."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from monarch_nb._client.ssh import CONNECT_S, Done, forward_command, ssh_trouble
from monarch_nb.exceptions import MeshStartError

_LOOK_S = 0.02


@dataclass(frozen=True)
class Tunnel:
    """A way to addresses that can't be reached from here.

    Attributes:
        to: what they are reached through, in words.
        command: returns the words of the command, of a socket's path and of `tcp://HOST:PORT`, as seen from
            there. It ends when the way is lost.
        explain: returns why it has ended, and what to type.
    """

    to: str
    command: Callable[[str, str], list[str]]
    explain: Callable[[Done], str]

    @contextmanager
    def opened(self, socket: str, address: str) -> Iterator[None]:
        """Have a socket lead to an address.

        Raises:
            MeshStartError: if it can't.
        """
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                self.command(socket, address),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
            try:
                deadline = time.monotonic() + 2 * CONNECT_S
                while not os.path.exists(socket):
                    if process.poll() is not None or time.monotonic() > deadline:
                        errors.seek(0)
                        words = errors.read().decode(errors="replace")
                        raise MeshStartError(self.explain(Done(process.poll() or 1, "", words)))
                    time.sleep(_LOOK_S)
                yield
            finally:
                process.terminate()
                process.wait()


def ssh_tunnel(machine: str) -> Tunnel:
    """Return the tunnel through a machine that ssh logs in to."""
    return Tunnel(
        machine,
        lambda socket, address: forward_command(machine, socket, address),
        lambda done: ssh_trouble(machine, done),
    )
