"""A shell on a host of a job, in this terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from monarch_nb.actor.actor_mesh import Actor
from monarch_nb.actor.channel import Channel
from monarch_nb.actor.endpoint import endpoint
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.job.commands import rank_variables

BLOCK_BYTES = 1 << 14
GRACE_S = 1.0


class ShellActor(Actor):
    """The actor that runs a shell in a terminal of its own."""

    def __init__(self) -> None:
        self._pid = 0
        self._fd = -1

    @endpoint
    def start(
        self, out: Any, env: Mapping[str, str], workdir: str | None, client_cwd: str, size: tuple[int, int]
    ) -> None:
        """Start the shell; its output goes to `out` as bytes, its exit code as an int at the end."""
        if self._pid:
            raise RuntimeError("this shell runs already")
        variables = {**os.environ, **rank_variables(), **env}
        program = variables.get("SHELL") or "/bin/sh"
        directory = workdir or (client_cwd if os.path.isdir(client_cwd) else "/")
        if not os.path.isdir(directory):
            raise NotADirectoryError(f"there is no directory {directory!r} on this host")
        self._fd, theirs = pty.openpty()
        _set_size(self._fd, size)
        self._pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", 'cd "$1" && exec setsid --ctty --wait "$2" -i', "sh", directory, program],
            variables,
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs, fd) for fd in (0, 1, 2)],
        )
        os.close(theirs)
        threading.Thread(target=self._read, args=(out,), name="shell-output", daemon=True).start()

    def _read(self, out: Any) -> None:
        with suppress(OSError):  # EIO: the last process of the terminal has gone
            while block := os.read(self._fd, BLOCK_BYTES):
                out.send(block)
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        out.send(code if code >= 0 else 128 - code)

    @endpoint
    def write(self, block: bytes) -> None:
        """Send typed text."""
        os.write(self._fd, block)

    @endpoint
    def resize(self, size: tuple[int, int]) -> None:
        """Give the terminal the new size of the user's window."""
        _set_size(self._fd, size)

    def __cleanup__(self, error: BaseException | None) -> None:
        if self._pid:
            with suppress(OSError):
                os.close(self._fd)  # sends a hangup to its processes
            with suppress(OSError):
                os.kill(self._pid, signal.SIGHUP)


def _set_size(fd: int, size: tuple[int, int]) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


def _size() -> tuple[int, int]:
    try:
        found = os.get_terminal_size(sys.stdin.fileno())
    except OSError:
        return 24, 80
    return found.lines, found.columns


def shell(
    host_mesh_singleton: HostMesh, *, env: Mapping[str, str] | None = None, workdir: str | None = None
) -> int:
    """Run a shell on one host, with this program's stdin and stdout; return its exit code.

    Args:
        env: environment variables besides those of the host.
        workdir: by default this program's own directory, where there is one of that name.

    Raises:
        ValueError: for a mesh of several hosts.

    Example:
        >>> shell(job.state().hosts.slice(hosts=0))  # doctest: +SKIP
    """
    if len(host_mesh_singleton) != 1:
        raise ValueError(
            f"shell takes one host, and these are {len(host_mesh_singleton)}: slice the mesh "
            "first, as in hosts.slice(hosts=0)"
        )
    procs = host_mesh_singleton.spawn_procs(name="shell")
    try:
        port, receiver = Channel.open()
        actor: Any = procs.spawn("shell", ShellActor)
        variables = {"TERM": os.environ.get("TERM", "xterm-256color"), **(env or {})}
        actor.start.call_one(port, variables, workdir, os.getcwd(), _size()).get()
        with _raw(sys.stdin.fileno()), _on_resize(lambda: actor.resize.broadcast(_size())), _typing(actor):
            while isinstance(block := receiver.recv().get(), bytes):
                sys.stdout.buffer.write(block)
                sys.stdout.buffer.flush()
        return int(block)
    finally:
        procs.stop(grace_s=GRACE_S).get()


@contextmanager
def _typing(actor: Any) -> Iterator[None]:
    """Send on what is typed, in a thread, until the block ends."""
    fd, (ended, end) = sys.stdin.fileno(), os.pipe()

    def read() -> None:
        while ended not in (ready := select.select([fd, ended], [], [])[0]):
            block = os.read(fd, BLOCK_BYTES) if fd in ready else b""
            actor.write.broadcast(block or b"\x04")  # Ctrl-D
            if not block:
                return

    thread = threading.Thread(target=read, name="shell-input", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(end)
        thread.join(GRACE_S)
        os.close(ended)


@contextmanager
def _raw(fd: int) -> Iterator[None]:
    if not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def _on_resize(tell: Callable[[], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGWINCH, lambda _number, _frame: tell())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
