"""A progress bar of a long transfer, below the cell that waits for it."""

from __future__ import annotations

import contextvars
import html
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from monarch_nb._units import elapsed_text, rate_text, size_text

INTERVAL_S = 0.2


class Moving(Protocol):
    """The interface of a transfer whose progress is shown."""

    @property
    def num_bytes(self) -> int: ...
    @property
    def done_bytes(self) -> int: ...
    def done(self) -> bool: ...


class TransferBar:
    """The progress bar of one transfer, updated by a thread until the transfer is over.

    Args:
        transfer: the transfer to show.
        began: its start time (`time.monotonic`).
    """

    def __init__(self, transfer: Moving, began: float) -> None:
        self._transfer = transfer
        self._began = began

    def text(self) -> str:
        """Return the progress as text, such as `312.5 MiB of 1 GiB, 0.41 GB/s, 2 s left`."""
        done, total = self._transfer.done_bytes, self._transfer.num_bytes
        seconds = time.monotonic() - self._began
        rate = done / seconds if seconds > 0 else 0.0
        parts = [f"{size_text(done)} of {size_text(total)}", rate_text(done, max(seconds, 1e-9))]
        if self._transfer.done():
            parts.append(elapsed_text(seconds))
        elif rate:
            parts.append(f"{elapsed_text((total - done) / rate)} left")
        return ", ".join(parts)

    def mimebundle(self) -> dict[str, str]:
        """Return the progress as text and as HTML."""
        text = self.text()
        bar = f"<progress max='{self._transfer.num_bytes}' value='{self._transfer.done_bytes}'></progress>"
        return {"text/plain": text, "text/html": f"<div>{bar} <span>{html.escape(text)}</span></div>"}


class Bar(Protocol):
    """The interface of a display that `show_until_over` keeps up to date."""

    def mimebundle(self) -> dict[str, str]: ...


def show_long(transfer: Moving, began: float) -> Callable[[], None]:
    """Show a transfer in the running cell; return the function that ends the display. Does nothing without a
    notebook.
    """
    return show_until_over(TransferBar(transfer, began))


def show_until_over(bar: Bar, after_s: float = 0.0) -> Callable[[], None]:
    """Show a bar in the running cell; return the function that ends the display. Does nothing without a
    notebook.

    Args:
        after_s: so long it's not shown: it may be over by then.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return lambda: None
    from IPython.display import display

    over = threading.Event()
    handles = [] if after_s else [display(bar.mimebundle(), raw=True, display_id=True)]

    def run() -> None:
        if over.wait(after_s):
            return
        if not handles:
            handles.append(display(bar.mimebundle(), raw=True, display_id=True))
        while not over.wait(INTERVAL_S):
            handles[0].update(bar.mimebundle(), raw=True)

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(run,), name="monarch_nb-transfer-bar", daemon=True
    )
    thread.start()

    def end() -> None:
        over.set()
        thread.join()
        if handles:
            handles[0].update(bar.mimebundle(), raw=True)

    return end
