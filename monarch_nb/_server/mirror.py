"""A copy of a mesh's latest state in this server, for any number of readers, each at its own speed."""

from __future__ import annotations

from collections.abc import Callable

from monarch_nb.status import FullStatus, MeshStatus, MeshSummary, StatusChange, Versioned


class Mirror:
    """The last known state of a mesh. Owned by the event loop's thread."""

    def __init__(self) -> None:
        self.rows = Versioned(())
        self.gone = ""
        """Why the mirror ended; empty while it is updated."""
        self._listeners: list[Callable[[], None]] = []

    @property
    def known(self) -> bool:
        """Whether the controller has sent a status."""
        return bool(self.rows.order)

    def take_change(self, change: StatusChange) -> None:
        """Apply a change that the controller has sent."""
        if isinstance(change, FullStatus):
            full = change.status
            self.rows = Versioned(tuple(r.rank for r in full.ranks), self.rows.version + 1)
            self.rows.put_head(full)
            self.rows.put_rows(full.hosts, full.ranks)
        else:
            self.rows.change_head(change.mesh)
            self.rows.put_rows(change.hosts, change.ranks)
        self._tell()

    def set_gone(self, reason: str) -> None:
        """Record why no further changes will arrive, and notify the listeners."""
        self.gone = self.gone or reason
        self._tell()

    def unseen_changes(self, seen: int) -> StatusChange | None:
        """Return the changes since change number `seen`; None if there are none."""
        return self.rows.unseen_changes(seen) if self.known else None

    def status(self) -> MeshStatus:
        """Return the whole status."""
        return self.rows.full()

    def summary(self) -> MeshSummary:
        """Return the mesh's row in a list of meshes."""
        return self.status().summary()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change; return a function that removes the listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
