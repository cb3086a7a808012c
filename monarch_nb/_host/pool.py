"""`monarch-nb host --wait DIR`: hosts that wait in a directory, and serve one mesh after the other.

For who has machines or containers that are up already, and that share a directory: the hosts of
`docker/compose.yaml`. A host shows itself there as NAME.waiting, a file that it holds locked, so that what a
killed host has left isn't taken for one. Who wants it renames that file to NAME.taken, which succeeds for one
only, and puts an invitation beside it: NAME.join. The host removes the invitation, joins, and is NAME.busy
until the mesh has ended.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket as sockets
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from monarch_nb._host import launcher
from monarch_nb._wire.invitation import InvitationError

WAITING, TAKEN, BUSY, JOIN, REFUSAL = "waiting", "taken", "busy", "join", "said"
_STATES = (WAITING, TAKEN, BUSY)
POLL_S = 0.1


class PoolError(Exception):
    """The error of a directory that can't be used; the message says why, in a sentence."""


def check_directory(directory: str) -> None:
    """Raise if other users can write to a directory: they could send hosts to another mesh.

    Raises:
        PoolError: saying what to type.
    """
    try:
        about = os.stat(directory)
    except OSError as error:
        raise PoolError(f"{directory}: {(error.strerror or str(error)).lower()}") from None
    if not stat.S_ISDIR(about.st_mode):
        raise PoolError(f"{directory} is no directory")
    if about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PoolError(f"{directory} isn't yours alone: invitations lie there; chmod 700 {directory}")


def waiting_hosts(directory: str) -> list[str]:
    """Return the names of the waiting hosts; remove files of killed ones."""
    found = []
    for name in sorted(os.listdir(directory)):
        host, _, state = name.rpartition(".")
        if state == WAITING and _is_held(os.path.join(directory, name)):
            found.append(host)
    return found


def claim_host(directory: str, host: str) -> bool:
    """Take a waiting host, atomically; False if another process was faster."""
    return _renamed(directory, host, WAITING, TAKEN)


def release(directory: str, host: str) -> None:
    """Let a taken host wait again, if it hasn't read its invitation yet."""
    with suppress(FileNotFoundError):
        os.unlink(_path(directory, host, JOIN))
    _renamed(directory, host, TAKEN, WAITING)


def invite(directory: str, host: str, invitation: str) -> None:
    """Give an invitation to a host that was taken."""
    forget_refusal(directory, host)
    part = _path(directory, host, "part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(fd, "w") as file:
        file.write(invitation)
    os.rename(part, _path(directory, host, JOIN))


def refusal_of(directory: str, host: str) -> str:
    """Return why a host couldn't join; empty if it could, or hasn't tried yet."""
    with suppress(OSError), open(_path(directory, host, REFUSAL)) as file:
        return file.read(4096).strip()
    return ""


def wait_until_back(directory: str, hosts: Sequence[str], timeout_s: float) -> None:
    """Wait until hosts whose meshes have let them go wait for the next one, or have ended."""
    limit = time.monotonic() + timeout_s
    while any(os.path.exists(_path(directory, host, BUSY)) for host in hosts) and time.monotonic() < limit:
        time.sleep(POLL_S / 2)


def forget_refusal(directory: str, host: str) -> None:
    """Remove the reason that a host has written."""
    with suppress(FileNotFoundError):
        os.unlink(_path(directory, host, REFUSAL))


def _path(directory: str, host: str, state: str) -> str:
    return os.path.join(directory, f"{host}.{state}")


def _renamed(directory: str, host: str, before: str, after: str) -> bool:
    try:
        os.rename(_path(directory, host, before), _path(directory, host, after))
    except FileNotFoundError:
        return False
    return True


def _is_held(path: str) -> bool:
    """Say whether the host that has made a file is alive; if it isn't, remove the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    with suppress(FileNotFoundError):
        os.unlink(path)
    return False


def is_here(directory: str, host: str) -> bool:
    """Say whether a host waits, or is in a mesh: for a health check."""
    return any(_is_held(_path(directory, host, state)) for state in _STATES)


# --- the host


def wait(directory: str, host: str) -> int:
    """Join one mesh after the other, until told to end by a signal; return the exit status.

    Raises:
        PoolError: if the directory isn't ours, or a host of that name waits there already.
    """
    check_directory(directory)
    if is_here(directory, host):
        raise PoolError(f"a host {host!r} waits in {directory} already")
    fd = os.open(_path(directory, host, "new"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)  # before the rename: no process sees the file without its lock
    _renamed(directory, host, "new", WAITING)
    try:
        with suppress(_Terminated):
            _end_when_notified()
            print(f"host {host} waits in {directory}", flush=True)
            while True:
                _join_next(directory, host)
    finally:
        for state in _STATES:
            with suppress(FileNotFoundError):
                os.unlink(_path(directory, host, state))
        os.close(fd)
    return 0


class _Terminated(BaseException):
    """The exception by which SIGTERM ends the process."""


def _end_when_notified() -> None:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, end)


def _join_next(directory: str, host: str) -> None:
    """Wait for an invitation, and be in its mesh until that ends."""
    path = _path(directory, host, JOIN)
    while not os.path.exists(path):
        time.sleep(POLL_S)
    try:
        invitation = launcher.read_invitation(path)
        os.unlink(path)
        _renamed(directory, host, TAKEN, BUSY)
        launcher.be_host(invitation, host)
    except (launcher.LauncherError, InvitationError, OSError) as error:
        _say(directory, host, str(error))
    if launcher.was_notified():
        raise _Terminated
    _end_when_notified()
    with suppress(FileNotFoundError):
        os.unlink(path)
    if not _renamed(directory, host, BUSY, WAITING):
        _renamed(directory, host, TAKEN, WAITING)


def _say(directory: str, host: str, words: str) -> None:
    """Tell the program that has invited this machine why it isn't available as a host."""
    print(f"node {host}: {words}", file=sys.stderr, flush=True)
    with suppress(OSError):
        fd = os.open(_path(directory, host, REFUSAL), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "w") as file:
            file.write(words)


def run(directory: str) -> int:
    """Wait in a directory under this machine's name; return the exit status."""
    try:
        return wait(os.path.abspath(directory), sockets.gethostname())
    except PoolError as error:
        print(f"host --wait: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":  # the health check: python -m monarch_nb._host.pool DIR
    sys.exit(0 if is_here(sys.argv[1], sockets.gethostname()) else 1)
