"""Types of the lines that ranks have printed."""

from __future__ import annotations

from typing import Literal

from monarch_nb._protocol.base import Record

Stream = Literal["stdout", "stderr"]


class LogLine(Record, frozen=True):
    """A line that a rank has written; `when`: the time at which it was complete."""

    rank: int
    stream: Stream
    when: float
    text: str


class LogPage(Record, frozen=True):
    """A page of what ranks have printed, oldest line first."""

    lines: tuple[LogLine, ...]
    before: int | None
    """Position at which the previous page ends; None if there is none. A search covers a bounded part at a
    time: a page may be empty and still have a previous one.
    """
    after: int
    """Position at which this page ends: to follow from here, watch logs from this position."""
