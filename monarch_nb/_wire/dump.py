"""Stacks that a rank writes into a file on a signal, even while something holds the interpreter's lock, so
that no Python code can run.

The file lies in the host process' directory, with mode 0600; `faulthandler`, which is C code in the rank's
signal handler, appends to it. It begins with

    offset  bytes
         0     16  ident of the rank's main thread, hexadecimal
        16      1  space
        17     16  kernel's id of the thread that shall take the signal, hexadecimal; 0: any
        33      1  newline

The signal goes to one thread that mostly sleeps, the background reader: what the others wait for in the
kernel isn't cut short by it (`sleep` would be). The file has its name only once the handler is in place;
besides, the kernel is asked whether the rank catches the signal, for else it would kill it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from contextlib import suppress
from typing import Final, NamedTuple

NUMBER: Final = signal.SIGRTMIN + 11
"""A real-time signal: SIGUSR1 and SIGUSR2 belong to the user, and to job schedulers."""
HEADER_BYTES: Final = 34


class Header(NamedTuple):
    """The header of a file of stacks: the main thread's ident, and the id of the thread to signal."""

    main_ident: int
    thread_id: int


class DumpFile:
    """The rank's side of a file of stacks: created once, kept open for the rank's life. Where the disk is
    full there is none, and py-spy is used.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.fd = -1
        temporary = f"{path}.{os.getpid()}"
        with suppress(OSError):
            os.unlink(temporary)
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            if os.write(fd, _header(0)) < HEADER_BYTES:
                raise OSError(f"no room for {temporary}")
            faulthandler.register(NUMBER, file=fd, all_threads=True, chain=False)
            os.rename(temporary, path)
        except OSError:
            faulthandler.unregister(NUMBER)
            os.close(fd)
            with suppress(OSError):
                os.unlink(temporary)
        else:
            self.fd = fd

    def aim(self, thread_id: int) -> None:
        """Say which thread shall take the signal, by the kernel's id."""
        if self.fd < 0:
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(fd, _header(thread_id), 0)
        os.close(fd)


def _header(thread_id: int) -> bytes:
    return b"%016x %016x\n" % (threading.main_thread().ident or 0, thread_id)


def read_header(fd: int) -> Header | None:
    """Return how a file begins, or None if it isn't one of ours."""
    data = os.pread(fd, HEADER_BYTES, 0)
    try:
        main, thread_id = data.split()
        return Header(int(main, 16), int(thread_id, 16)) if len(data) == HEADER_BYTES else None
    except ValueError:
        return None


def is_caught(pid: int) -> bool:
    """Return whether a process catches the signal, and has none of it waiting."""
    masks = {}
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("SigCgt", "SigPnd", "ShdPnd"):
                masks[name] = int(value, 16)
    bit = 1 << (NUMBER - 1)
    return bool(masks.get("SigCgt", 0) & bit) and not (masks.get("SigPnd", 0) | masks.get("ShdPnd", 0)) & bit
