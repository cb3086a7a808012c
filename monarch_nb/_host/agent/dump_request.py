"""Has another process of this machine write its stacks, by the signal of `_wire/dump`."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress

from monarch_nb._host.agent.dumped import is_whole
from monarch_nb._wire import dump
from monarch_nb._wire.process import process_trouble

_LOOK_S = 0.005


class Writing:
    """A file of stacks that a process is writing at the moment."""

    def __init__(self, fd: int, main_ident: int) -> None:
        self._fd = fd
        self.main_ident = main_ident

    def finish(self, deadline: float) -> str:
        """Wait until the file is complete; return its content at the deadline (monotonic)."""
        try:
            before, text = "", self._read()
            while (
                not (text and text == before and is_whole(text, self.main_ident))
                and time.monotonic() < deadline
            ):
                time.sleep(_LOOK_S)
                before, text = text, self._read()
            return text
        finally:
            os.close(self._fd)

    def _read(self) -> str:
        size = max(0, os.fstat(self._fd).st_size - dump.HEADER_BYTES)
        return os.pread(self._fd, size, dump.HEADER_BYTES).decode("utf-8", "replace")


def request_dump(pid: int, path: str) -> Writing | str:
    """Send the signal to a process that writes its stacks to `path`; return the reason if that fails."""
    if found := process_trouble(pid, stopped_only=True):
        return f"no signal reaches it: it {found.partition(';')[0]}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return "it has no handler for the signal yet"
    header = dump.read_header(fd)
    if header is None or not dump.is_caught(pid):
        os.close(fd)
        return "it has no handler for the signal"
    os.ftruncate(fd, dump.HEADER_BYTES)
    _send(pid, header.thread_id)
    return Writing(fd, header.main_ident)


def _send(pid: int, thread_id: int) -> None:
    """Send the signal to one thread; if that doesn't exist, to any. The kernel was just asked whether the
    process handles it.
    """
    libc = ctypes.CDLL(None)
    if thread_id and hasattr(libc, "tgkill") and libc.tgkill(pid, thread_id, int(dump.NUMBER)) == 0:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, dump.NUMBER)
