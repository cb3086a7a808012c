"""Feeds a view with the events that a cell's watcher receives."""

from __future__ import annotations

from collections.abc import Mapping

from monarch_nb._display.cell_view import CellView
from monarch_nb._display.errors import ErrorInfo
from monarch_nb._protocol.shown import CellEnd, Shown
from monarch_nb._protocol.states import CellStatus
from monarch_nb.exceptions import describe_end


class ViewWatcher:
    """The adapter that feeds a CellView with the events of a watched cell. All methods are called in the
    reading thread; the view has its own lock.

    Args:
        show_errors: show what ranks raise in the view; a cell that raises it itself leaves it out.
        may_leave_out: of many lines, the view shows the first and the last ones: no more need come.
    """

    def __init__(self, view: CellView, *, show_errors: bool = False, may_leave_out: bool = False) -> None:
        self._view = view
        self.may_leave_out = may_leave_out
        self._show_errors = show_errors

    def text(self, rank: int, stream: str, text: str) -> None:
        """Add a rank's output text to the view."""
        self._view.output(rank, stream, text)

    def display(self, rank: int, shown: Shown) -> None:
        """Show a rank's rich display or progress bar in the view, or clear what the rank has shown."""
        if shown.clear:
            self._view.clear(rank, wait=shown.clear == "wait")
        elif shown.bar is not None:
            self._view.bar(rank, shown.bar.key, shown.bar.text)
        else:
            self._view.display(rank, shown.data, shown.metadata, shown.display_id, shown.update)

    def ended(self, rank: int, end: CellEnd) -> None:
        """Handle the end of the cell on a rank: show its value or its error, and mark the rank as done."""
        if end.value is not None:
            self._view.result(rank, end.value)
        if self._show_errors and end.status in (CellStatus.ERROR, CellStatus.LOST):
            self._view.error(rank, _error_info(rank, end))
        self._view.done(rank, end.seconds or 0.0)

    def ended_well(self, seconds: Mapping[int, float]) -> None:
        """Mark ranks as done on which the cell has ended well, with no value to show."""
        self._view.done_all(seconds)

    def waits(self, text: str) -> None:
        """Show what the cell waits for; an empty text: it no longer waits."""
        self._view.wait_for(text)

    def left_out(self, num_lines: int) -> None:
        """Note that there were lines which aren't known here."""
        self._view.leave_out(num_lines)

    def message(self, text: str) -> None:
        """Show a message of the host process in the view."""
        self._view.note(text)


def _error_info(rank: int, end: CellEnd) -> ErrorInfo:
    if end.end is not None:
        return ErrorInfo(rank, "lost", describe_end(end.end), "", when=end.when)
    return ErrorInfo(rank, end.ename, end.evalue, end.traceback, when=end.when)
