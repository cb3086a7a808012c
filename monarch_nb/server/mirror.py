"""A mesh's state as this server last heard of it, for any number of readers, each at its own speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_nb.status import Versioned, summary

Change = dict[str, Any]


class Mirror:
    """Owned by the event loop's thread."""

    def __init__(self) -> None:
        self.rows = Versioned(())
        self.gone = ""
        """Why there's nothing more to come."""
        self._listeners: list[Callable[[], None]] = []

    @property
    def known(self) -> bool:
        """Whether anything has been heard."""
        return bool(self.rows.order)

    def take(self, change: Change) -> None:
        """Take what a home says."""
        if "full" in change:
            self._take_all(change["full"])
        else:
            self.rows.put_head(change["mesh"])
            for host in change["hosts"]:
                self.rows.put_host(host["index"], host)
            for rank in change["ranks"]:
                self.rows.put_rank(rank["rank"], rank)
        self._tell()

    def _take_all(self, full: dict[str, Any]) -> None:
        self.rows = Versioned(tuple(r["rank"] for r in full["ranks"]), self.rows.version + 1)
        self.rows.put_head({k: v for k, v in full.items() if k not in ("hosts", "ranks")})
        for host in full["hosts"]:
            self.rows.put_host(host["index"], host)
        for rank in full["ranks"]:
            self.rows.put_rank(rank["rank"], rank)

    def end(self, reason: str) -> None:
        """There's nothing more to come."""
        self.gone = self.gone or reason
        self._tell()

    def news(self, seen: int) -> Change | None:
        """Return what is new since change number `seen`: {"full": ...}, a change, or None."""
        if not self.known or self.rows.version <= seen:
            return None
        return self.rows.full() if seen < self.rows.reset_at or seen < 0 else self.rows.changed_since(seen)

    def status(self) -> dict[str, Any]:
        """Return all that is known."""
        return dict(self.rows.full()["full"])

    def summary(self) -> dict[str, Any]:
        """Return the row that stands for this mesh in a list."""
        return summary(self.status())

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever there's something new; returns how to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
