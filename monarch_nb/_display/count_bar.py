"""A progress display below a cell that waits for many things: how many of them are done."""

from __future__ import annotations

import html
import time
from collections.abc import Callable

from monarch_nb._display.transfer_bar import show_until_over
from monarch_nb._units import elapsed_text

SHOWN_AFTER_S = 2.0


class Counted:
    """A display of how many of many things are done, below the cell that waits for them.

    Args:
        state: returns the number that are done, and their total if it's known.
    """

    def __init__(self, state: Callable[[], tuple[int, int | None]]) -> None:
        self._state = state
        self._began = time.monotonic()

    def text(self) -> str:
        """Return the progress, such as `31 of 100 done, 6.2 s, 14 s left`."""
        done, total = self._state()
        seconds = time.monotonic() - self._began
        parts = [f"{done:,}{f' of {total:,}' if total is not None else ''} done", elapsed_text(seconds)]
        if total is not None and 0 < done < total:
            parts.append(f"{elapsed_text(seconds / done * (total - done))} left")
        return ", ".join(parts)

    def mimebundle(self) -> dict[str, str]:
        """Return the count as text and as HTML."""
        done, total = self._state()
        text = self.text()
        bar = f"<progress max='{total}' value='{done}'></progress> " if total is not None else ""
        return {"text/plain": text, "text/html": f"<div>{bar}<span>{html.escape(text)}</span></div>"}


def show_count(counted: Counted) -> Callable[[], None]:
    """Show a count in the running cell, if the work takes more than some seconds; return the function that
    ends the display.
    """
    return show_until_over(counted, SHOWN_AFTER_S)
