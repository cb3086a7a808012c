"""Counts the bytes that this process has moved, by path: a rank writes them to its activity page, where its
host process reads them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from monarch_nb._wire.activity_page import ActivityPage, Total

if TYPE_CHECKING:
    from monarch_nb.rdma.transfer import Receipt


class Totals:
    """The running totals of transfers, counted where they are requested. Thread-safe.

    Args:
        page: activity page to which they are written.
    """

    def __init__(self, page: ActivityPage | None = None) -> None:
        self._page = page
        self._by_path: dict[str, Total] = {}
        self._lock = threading.Lock()

    def add(self, receipt: Receipt) -> None:
        """Add a transfer to the totals."""
        path = receipt.path
        read = receipt.num_bytes if receipt.op == "read" else 0
        with self._lock:
            t = self._by_path.get(path, Total(path, 0, 0, 0, 0.0))
            written = receipt.num_bytes - read
            new = Total(
                path, t.num + 1, t.read_bytes + read, t.written_bytes + written, t.seconds + receipt.seconds
            )
            self._by_path[path] = new
            if self._page is not None:
                self._page.put_total(list(self._by_path).index(path), new)

    def by_path(self) -> Mapping[str, Total]:
        """Return the current totals by path."""
        with self._lock:
            return dict(self._by_path)
