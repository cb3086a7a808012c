"""Commands of engines: run on this machine or on a login node, with a time limit, and the command line of a
host.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from monarch_nb._wire.directory import private_directory, socket_root
from monarch_nb.job.engines.base import EngineError
from monarch_nb.job.spec import HostSpec

COMMAND_S = 30.0
CONNECT_S = 10
_MASTER_S = 60
_NOT_FOUND = 127


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


def run(argv: Sequence[str], text: str = "", timeout_s: float = COMMAND_S) -> Done:
    """Run a command on this machine, with `text` as its standard input.

    Raises:
        EngineError: if the command doesn't exist, or takes too long.
    """
    try:
        done = subprocess.run(
            argv, input=text.encode(), capture_output=True, timeout=timeout_s, start_new_session=True
        )
    except FileNotFoundError:
        raise EngineError(f"{argv[0]} isn't installed here, or not on PATH") from None
    except OSError as error:
        raise EngineError(f"{argv[0]} can't be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise EngineError(f"{' '.join(argv[:3])} has given no answer within {timeout_s:g} s") from None
    return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def run_at(login: str, argv: Sequence[str], text: str = "", timeout_s: float = COMMAND_S) -> Done:
    """Run a command on this machine, or on a login node by ssh.

    Raises:
        EngineError: if the command doesn't exist or takes too long, or the login fails.
    """
    if not login:
        return run(argv, text, timeout_s)
    done = run([*ssh_command(login), shlex.join(argv)], text, timeout_s)
    if done.code == SSH_FAILED:
        raise EngineError(f"login {ssh_trouble(login, done)}")
    if done.code == _NOT_FOUND:
        raise EngineError(f"{argv[0]} isn't installed on {login}, or not on PATH there")
    return done


# --- OpenSSH

SSH_FAILED = 255
"""ssh's own exit status, as opposed to that of a command."""


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


# --- commands on a host


def launcher_command(spec: HostSpec, *arguments: str) -> str:
    """Return the shell command that starts the launcher on a host; `$` in `arguments` is expanded by that
    shell.
    """
    return (
        f"{shlex.quote(spec.python or sys.executable)} -P -m monarch_nb._host.launcher --join - "
        f"{' '.join(arguments)}"
    ).rstrip()


def host_script(spec: HostSpec, *arguments: str) -> str:
    """Return a shell command for a host: the profile's setup, then the launcher, which reads the
    invitation from standard input.
    """
    setup = "".join(f"{line}\n" for line in spec.setup)
    prepared = f"{{ :\n{setup}}} </dev/null >&2 || exit 1\n" if setup else ""
    return f"bash -l -c {shlex.quote(f'{prepared}exec {launcher_command(spec, *arguments)}')}"


def launcher_trouble(machine: str, done: Done, spec: HostSpec) -> str:
    """Return why a launcher has ended, and what to type."""
    python = spec.python or sys.executable
    if "No module named" in done.err and "monarch_nb" in done.err:
        return (
            f"{machine}: {python} has no monarch_nb there: install it, or name another interpreter: "
            "python = in the profile"
        )
    if done.code in (_NOT_FOUND, 126):
        return f"{machine}: there is no {python} there: python = in the profile ({done.words})"
    return done.words.removeprefix("node ") if done.words.startswith("node ") else f"{machine}: {done.words}"
