"""Commands of engines: run on this machine or on a login node, with a time limit, and the command line of a
host.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from monarch_nb._client.ssh import SSH_FAILED, Done, ssh_command, ssh_trouble
from monarch_nb.job.allocation import records_directory
from monarch_nb.job.engines.base import EngineError, NoAnswer
from monarch_nb.job.spec import HostSpec

_NODE_WORDS = re.compile(r"^(?:\d+: )?(node \S+: .+)$", re.MULTILINE)
COMMAND_S = 30.0
_NOT_FOUND = 127


def run(
    argv: Sequence[str], text: str = "", timeout_s: float = COMMAND_S, env: Mapping[str, str] | None = None
) -> Done:
    """Run a command on this machine, with `text` as its standard input, and `env` besides its environment.

    Raises:
        EngineError: if the command doesn't exist.
        NoAnswer: if it takes too long.
    """
    try:
        with _saying_why(argv[0]):
            done = subprocess.run(
                argv, input=text.encode(), capture_output=True, timeout=timeout_s, start_new_session=True,
                env={**os.environ, **(env or {})},
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{' '.join(argv[:3])} has given no answer within {timeout_s:g} s") from None
    return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def start(argv: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command on this machine that is told and answers in lines; it writes errors to a file.

    Raises:
        EngineError: if the command doesn't exist.
    """
    with _saying_why(argv[0]):
        return subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )


@contextmanager
def _saying_why(command: str) -> Iterator[None]:
    """Raise an `EngineError` for a command that can't be run."""
    try:
        yield
    except FileNotFoundError:
        raise EngineError(f"{command} isn't installed here, or not on PATH") from None
    except OSError as error:
        raise EngineError(f"{command} can't be run: {error.strerror}") from None


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


def has_module(python: str, module: str) -> bool:
    """Return whether an interpreter of this machine has a module."""
    program = f"import importlib.util as u; print(u.find_spec({module!r}) is not None)"
    return run([python, "-P", "-c", program]).out.strip() == "True"


def log_directory(login: str) -> str:
    """Return the directory of launchers' output files, on the machine where jobs are submitted.

    Raises:
        EngineError: if there can't be one.
    """
    if not login:
        return records_directory()
    made = 'd="$HOME/.cache/monarch_nb"; mkdir -p "$d" && chmod 700 "$d" && echo "$d"'
    done = run_at(login, ["sh", "-c", made])
    if done.code != 0:
        raise EngineError(f"no directory for logs on {login}: {done.words}")
    return done.out.strip()


def last_words(login: str, path: str) -> list[str]:
    """Return what launchers have written last into a file of a job; if they haven't, lines that look like
    errors.
    """
    done = run_at(login, ["tail", "-c", "65536", path])
    words = list(dict.fromkeys(_NODE_WORDS.findall(done.out)))
    return words or [f"{path} on {login or 'this machine'}: {line}" for line in _errors(done.out)]


def _errors(text: str) -> list[str]:
    lines = [
        line.strip()
        for line in text.splitlines()
        if "error" in line.lower() or "not found" in line or "No such" in line
    ]
    return lines[-3:]


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
    return profile_script(spec, launcher_command(spec, *arguments))


def profile_script(spec: HostSpec, command: str) -> str:
    """Return a shell command: the profile's setup, then `command`, which has the standard input."""
    setup = "".join(f"{line}\n" for line in spec.setup)
    prepared = f"{{ :\n{setup}}} </dev/null >&2 || exit 1\n" if setup else ""
    return f"bash -l -c {shlex.quote(f'{prepared}exec {command}')}"


def inside_command(spec: HostSpec) -> str:
    """Return the shell command of the program that starts a mesh on the first host: it reads the record of
    the request from standard input.
    """
    return f"{shlex.quote(spec.python or sys.executable)} -P -m monarch_nb.mesh.inside_job"


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
