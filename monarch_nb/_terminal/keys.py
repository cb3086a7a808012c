"""Keys during a live display: q ends it, as in `top` and `less`."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def key_ends(key: str, end: Callable[[], None]) -> Iterator[None]:
    """Call `end`, in a thread of its own, when a key is pressed; nothing if nobody can press one."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    over, tell_over = os.pipe()
    thread = threading.Thread(
        target=_read, args=(stdin, over, key.encode(), end), name="monarch-nb-keys", daemon=True
    )
    tty.setcbreak(stdin)
    thread.start()
    try:
        yield
    finally:
        os.write(tell_over, b".")
        thread.join()
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        os.close(over)
        os.close(tell_over)


def _read(stdin: int, over: int, key: bytes, end: Callable[[], None]) -> None:
    while True:
        ready = select.select([stdin, over], [], [])[0]
        if over in ready:
            return
        pressed = os.read(stdin, 64)
        if key in pressed:
            end()
        if not pressed:  # the terminal has gone
            return
