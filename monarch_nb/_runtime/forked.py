"""Ends a process that user code has forked, when it returns from that code: otherwise it would answer in the
rank's place, and take its messages.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from monarch_nb._transport.failure import traceback_of

_is_child = False
_masks: dict[int, set[int]] = {}
"""The blocked signals of each thread that is forking."""


def install(on_terminate: Callable[..., None], in_child: Callable[[], None]) -> None:
    """Call `in_child` first in each forked child from now on.

    `on_terminate`, the rank's handler of SIGTERM, isn't the child's: who ends a child, a Pool say, means the
    child. A signal that comes before the child has the default handler would be lost, for Python drops what
    is pending at a fork and what a handler raises in a hook; so it's blocked until then.
    """
    os.register_at_fork(
        before=_block, after_in_parent=_unblock, after_in_child=lambda: _become_child(on_terminate, in_child)
    )


def _block() -> None:
    _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock() -> None:
    before = _masks.pop(threading.get_ident(), None)
    if before is not None and signal.SIGTERM not in before:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _become_child(on_terminate: Callable[..., None], in_child: Callable[[], None]) -> None:
    global _is_child
    _is_child = True
    in_child()
    if signal.getsignal(signal.SIGTERM) is on_terminate:  # otherwise the handler is the user's
        with suppress(ValueError):  # the fork was made by a thread other than the main one
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock()


def end_if_forked(error: BaseException | None = None) -> None:
    """End this process if it's a forked child of the rank, as Python ends a process that has raised this
    error.
    """
    if not _is_child:
        return
    status = 0
    with suppress(BaseException):  # whatever the user's streams and errors do
        if isinstance(error, SystemExit):
            status = _status_of(error.code)
        elif error is not None:
            status = 1
            sys.stderr.write(traceback_of(error))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    os._exit(status)


def _status_of(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1
