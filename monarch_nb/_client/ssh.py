"""Commands of OpenSSH, and what goes wrong with them, in words."""

from __future__ import annotations

import os
from dataclasses import dataclass

from monarch_nb._wire.directory import private_directory, socket_root

CONNECT_S = 10
SSH_FAILED = 255
"""ssh's own exit status, as opposed to that of a command."""
_MASTER_S = 60
_ALIVE_S = 5


@dataclass(frozen=True)
class Done:
    """The result of a command: its exit code and its output."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The last output of the command, for a message."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return "; ".join(lines[-3:]) or f"exit code {self.code}"


def ssh_command(machine: str, config: str = "") -> list[str]:
    """Return an ssh command that doesn't prompt, and shares one connection for each machine."""
    directory = os.path.join(socket_root(), "ssh")
    private_directory(directory)
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={CONNECT_S}",
        "ControlMaster=auto",
        f"ControlPath={directory}/%C",
        f"ControlPersist={_MASTER_S}",
    ]
    return [
        "ssh",
        *(["-F", os.path.expanduser(config)] if config else []),
        "-T",
        *(f"-o{option}" for option in options),
        "--",
        machine,
    ]


def forward_command(machine: str, socket_path: str, address: str) -> list[str]:
    """Return an ssh command that leads a socket of this machine to an address there, by a connection of its
    own. It ends when the machine hasn't answered for some 15 s.

    Args:
        address: `tcp://HOST:PORT`, as seen from that machine.
    """
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={CONNECT_S}",
        "ControlPath=none",
        "ExitOnForwardFailure=yes",
        f"ServerAliveInterval={_ALIVE_S}",
        "ServerAliveCountMax=3",
        "StreamLocalBindMask=0177",
        "StreamLocalBindUnlink=yes",
    ]
    lead = f"{socket_path}:{address.removeprefix('tcp://')}"
    return ["ssh", "-N", "-T", *(f"-o{option}" for option in options), "-L", lead, "--", machine]


def ssh_trouble(machine: str, done: Done, config: str = "") -> str:
    """Return why the login failed, and what to type."""
    by_hand = f"ssh {f'-F {config} ' if config else ''}{machine}"
    if "Host key verification failed" in done.err or "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.err:
        return (
            f"{machine}: its host key isn't the one that is known, or none is known. Look at it and "
            f"accept it once: {by_hand}"
        )
    if "Permission denied" in done.err:
        return (
            f"{machine}: not logged in ({done.words}). Log in without a question first: ssh-copy-id "
            f"{machine}, or: ssh-add; then try: {by_hand}"
        )
    if "Could not resolve" in done.err:
        return f"{machine}: there is no host of that name; see ~/.ssh/config and the profile"
    return f"{machine}: cannot be reached by ssh ({done.words}). Try: {by_hand}"
