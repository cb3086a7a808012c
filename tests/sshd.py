"""A real sshd of a test's own: its own keys, its own client configuration, nothing of the user's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from processes import TAG
from waiting import wait_until

Profiles = Callable[[str], None]
"""Writes this user's profiles."""
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def why_not() -> str:
    """Return why no sshd can be started here; empty if one can."""
    if SSHD is None or shutil.which("ssh") is None:
        return "no sshd: apt-get install openssh-server"
    return "" if os.getuid() == 0 else "sshd of a test's own needs root here"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Sshd:
    """sshd at an address, and names by which ssh finds it.

    Args:
        inside: what the daemon is started by: a command that enters a namespace.
        also: more lines of its configuration.
        variable: set for what is run, as NAME=VALUE.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        address: str = "127.0.0.1",
        inside: Sequence[str] = (),
        also: str = "",
        variable: str = "",
    ) -> None:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder, self.port, self.config = folder, free_port(), folder / "config"
        for key in ("hostkey", "id"):
            if not (folder / key).exists():
                subprocess.run(
                    ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True
                )
        shutil.copy(folder / "id.pub", folder / "authorized_keys")
        self.own = folder / f"sshd_config.{names[0]}"
        self.own.write_text(
            f"Port {self.port}\nListenAddress {address}\nHostKey {folder}/hostkey\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nStrictModes no\n"
            f"UsePAM no\nPrintMotd no\nMaxStartups 100\nSetEnv {'='.join(TAG)} {variable}\n{also}"
        )
        with open(folder / "known_hosts", "a") as known:
            known.write(f"[{address}]:{self.port} {(folder / 'hostkey.pub').read_text()}")
        with open(self.config, "a") as config:
            for name in names:
                config.write(
                    f"Host {name}\n  HostName {address}\n  Port {self.port}\n  User root\n  "
                    f"IdentityFile {folder}/id\n  IdentitiesOnly yes\n  UserKnownHostsFile "
                    f"{folder}/known_hosts\n  StrictHostKeyChecking yes\n"
                )
        self._address, self._inside = address, inside
        self.restart()

    def restart(self) -> None:
        """Start the daemon, for the first time or after it was ended."""
        with open(self.folder / "log", "ab") as log:
            command = [*self._inside, str(SSHD), "-D", "-e", "-f", str(self.own)]
            self.process = subprocess.Popen(command, stderr=log)
        self._wait(self._address, self._inside)

    def _wait(self, address: str, inside: Sequence[str]) -> None:
        if inside:
            wait_until(lambda: f"port {self.port}" in (self.folder / "log").read_text(), "sshd that listens")
            return

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((address, self.port)) == 0

        wait_until(listens, "sshd that listens")

    def put_on_path(self, folder: Path) -> str:
        """Write an `ssh` that knows this daemon's names into a new folder; return a PATH that begins with
        it.
        """
        folder.mkdir()
        (folder / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {self.config} "$@"\n')
        (folder / "ssh").chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    def close(self) -> None:
        """End it; sessions of masters end with their ssh."""
        self.process.terminate()
        self.process.wait(10)
