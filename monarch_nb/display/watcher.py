"""Feeds a view from what a cell's watcher is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.states import CellStatus
from monarch_nb.display.cell_view import CellView
from monarch_nb.display.errors import ErrorInfo
from monarch_nb.exceptions import describe_end


class ViewWatcher:
    """Feeds a CellView. All methods are called in the reading thread; the view has its own lock.

    Args:
        show_errors: show what ranks raise in the view; a cell that raises it itself leaves it out.
    """

    def __init__(self, view: CellView, *, show_errors: bool = False) -> None:
        self._view = view
        self._show_errors = show_errors

    def text(self, rank: int, stream: str, text: str) -> None:
        """A rank has written."""
        self._view.output(rank, stream, text)

    def display(self, rank: int, content: dict[str, Any]) -> None:
        """A rank shows something rich, or takes away what it has shown."""
        if content.get("clear"):
            self._view.clear(rank, wait=content["clear"] == "wait")
            return
        if content.get("bar"):
            self._view.bar(rank, content["bar"]["key"], content["bar"]["text"])
            return
        self._view.display(
            rank,
            content["data"],
            content["metadata"],
            display_id=content["display_id"],
            update=content["update"],
        )

    def ended(self, rank: int, ended: Mapping[str, Any]) -> None:
        """The cell has ended on a rank."""
        if ended.get("value") is not None:
            self._view.result(rank, ended["value"])
        if self._show_errors and ended["status"] in (CellStatus.ERROR, CellStatus.LOST):
            self._view.error(rank, _error_info(rank, ended))
        self._view.done(rank, ended.get("seconds", 0.0))

    def ended_well(self, seconds: Mapping[int, float]) -> None:
        """The cell has ended well on ranks, with no value to show."""
        self._view.done_all(seconds)

    def waits(self, text: str) -> None:
        """The cell waits for others, or no longer."""
        self._view.wait_for(text)

    def message(self, text: str) -> None:
        """The host process has something to say."""
        self._view.note(text)


def _error_info(rank: int, ended: Mapping[str, Any]) -> ErrorInfo:
    if ended["status"] == CellStatus.LOST:
        return ErrorInfo(rank, "lost", describe_end(RankExit.of(ended["end"])), "", when=ended["when"])
    return ErrorInfo(rank, ended["ename"], ended["evalue"], ended["traceback"], when=ended["when"])
