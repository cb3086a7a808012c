"""The progress of sending an environment to hosts, below the cell that waits: bytes, speed, and hosts that
lag behind.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Mapping

from monarch_nb._shape import name_hosts
from monarch_nb._units import elapsed_text, rate_text, size_text
from monarch_nb.mesh.shipping.packs import PACK_BYTES

BEHIND_BYTES = 2 * PACK_BYTES
"""A host lags behind if it lacks this much more than the most advanced one."""


class Progress:
    """The progress of sending contents to hosts. Changed by the sending threads, read by the thread that
    displays it.

    Example:
        >>> progress = Progress()
        >>> progress.begin_sending({1: 64 << 20, 2: 64 << 20})
        >>> progress.took(1, 48 << 20)
        >>> progress.text().partition(", ")[0], progress.behind()
        ('48 MiB of 128 MiB', (2,))
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._step = "comparing what hosts have"
        self._left: dict[int, int] = {}
        self._num_bytes = 0

    def step(self, what: str) -> None:
        """Show the step that begins, in words."""
        with self._lock:
            self._step = what

    def begin_sending(self, lacking: Mapping[int, int]) -> None:
        """Begin to send, or to send more.

        Args:
            lacking: by host, bytes.
        """
        with self._lock:
            self._began = self._began if self._num_bytes else time.monotonic()
            self._left |= lacking
            self._num_bytes += sum(lacking.values())
            self._step = ""

    def took(self, host: int, num_bytes: int) -> None:
        """Note that a host has received and verified a pack; one that was left out by then isn't counted."""
        with self._lock:
            if host in self._left:
                self._left[host] -= num_bytes

    def found_elsewhere(self, found: Mapping[int, int]) -> None:
        """Go on after a step in which hosts have got contents from somewhere else: these aren't sent.

        Args:
            found: by host, bytes.
        """
        with self._lock:
            for host, num_bytes in found.items():
                self._left[host] -= num_bytes
                self._num_bytes -= num_bytes
            self._step = ""

    def left_out(self, host: int) -> None:
        """Note that a host gets no more: what it still lacks isn't counted any more."""
        with self._lock:
            self._num_bytes -= self._left.pop(host, 0)

    @property
    def sent_bytes(self) -> int:
        """Bytes that hosts have got."""
        return self._num_bytes - sum(self._left.values())

    @property
    def num_bytes(self) -> int:
        """Bytes that all hosts lacked."""
        return self._num_bytes

    def sent_text(self) -> str:
        """Return how much was sent, such as `1.4 GiB sent`."""
        return f"{size_text(self.sent_bytes)} sent"

    def behind(self) -> tuple[int, ...]:
        """Return the hosts that are behind others."""
        with self._lock:
            least = min(self._left.values(), default=0)
            return tuple(h for h, left in sorted(self._left.items()) if left >= least + BEHIND_BYTES)

    def text(self) -> str:
        """Return the progress, such as `0.9 GiB of 1.4 GiB, 0.41 GB/s, 2 s left; behind: host 3 (320 MiB to
        go)`.
        """
        if self._step:
            return self._step
        seconds, sent = time.monotonic() - self._began, self.sent_bytes
        parts = [f"{size_text(sent)} of {size_text(self._num_bytes)}"]
        if sent and seconds > 0:
            parts.append(rate_text(sent, seconds))
            parts.append(f"{elapsed_text(seconds / sent * (self._num_bytes - sent))} left")
        return ", ".join(parts) + self._behind_text()

    def mimebundle(self) -> dict[str, str]:
        """Return the progress as text and as HTML."""
        text = self.text()
        bar = f"<progress max='{max(1, self._num_bytes)}' value='{self.sent_bytes}'></progress> "
        return {"text/plain": text, "text/html": f"<div>{bar}<span>{html.escape(text)}</span></div>"}

    def _behind_text(self) -> str:
        behind = self.behind()
        left = max((self._left.get(host, 0) for host in behind), default=0)
        return f"; behind: {name_hosts(behind)} ({size_text(left)} to go)" if behind else ""
