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

    def take_change(self, change: Change) -> None:
        """Take what a controller says."""
        if "full" in change:
            full = change["full"]
            self.rows = Versioned(tuple(r["rank"] for r in full["ranks"]), self.rows.version + 1)
            head = {k: v for k, v in full.items() if k not in ("hosts", "ranks")}
            self.rows.put_all(head, full["hosts"], full["ranks"])
        else:
            self.rows.put_all(change["mesh"], change["hosts"], change["ranks"])
        self._tell()

    def set_gone(self, reason: str) -> None:
        """There's nothing more to come."""
        self.gone = self.gone or reason
        self._tell()

    def unseen_changes(self, seen: int) -> Change | None:
        """Return what is new since change number `seen`: {"full": ...}, a change, or None."""
        return self.rows.unseen_changes(seen) if self.known else None

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
