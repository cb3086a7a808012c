"""Lines of many ranks that are not folded: in order of arrival, or rank by rank (`%%mesh --group
order|rank|none`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_nb._display.fold import DISPLAY, NOTE, Row, joined_rows, last_state

if TYPE_CHECKING:
    from monarch_nb._display.displays import Made


class _Newest:
    """The newest lines, and all displays; older lines are counted only."""

    def __init__(self, max_lines: int) -> None:
        self._max_lines = max_lines
        self._rows: deque[Row] = deque()
        self._older: list[Row] = []
        """Displays that stood before lines which have gone."""
        self._num_held = 0
        self.num_lines = 0

    def add(self, row: Row) -> None:
        """Take a row; the oldest line goes if there are too many."""
        self._rows.append(row)
        if row.stream == DISPLAY:
            return
        self.num_lines += 1
        self._num_held += 1
        while self._num_held > self._max_lines:
            oldest = self._rows.popleft()
            if oldest.stream == DISPLAY:
                self._older.append(oldest)
            else:
                self._num_held -= 1

    def clear(self, rank: int) -> None:
        """Forget what a rank has printed and displayed."""
        num_gone = sum(row.ranks == (rank,) and row.stream != DISPLAY for row in self._rows)
        self._rows = deque(row for row in self._rows if row.ranks != (rank,))
        self._older = [row for row in self._older if row.ranks != (rank,)]
        self._num_held -= num_gone
        self.num_lines -= num_gone

    def leave_out(self, num_lines: int) -> None:
        """Count lines only, and all that came before them."""
        self._older += [row for row in self._rows if row.stream == DISPLAY]
        self._rows.clear()
        self._num_held = 0
        self.num_lines += num_lines

    @property
    def num_hidden(self) -> int:
        """The number of lines that are counted only."""
        return self.num_lines - self._num_held

    def rows(self) -> list[Row]:
        """Return what is held."""
        return [*self._older, *self._rows]


class Lines:
    """The unfolded counterpart of `Fold`: it takes the same input and keeps each line separately.

    Args:
        by_rank: all of rank 0's lines first, then those of rank 1, and so on.
        prefix: name the rank before each line.
        max_rows: of more lines than these, the oldest are counted only.

    >>> lines = Lines([0, 1], prefix=True)
    >>> lines.feed(1, "stdout", "same\\n"); lines.feed(0, "stdout", "same\\n")
    >>> print(lines.drain(), end="")
    [1] same
    [0] same
    """

    def __init__(
        self,
        ranks: Sequence[int],
        *,
        prefix: bool,
        by_rank: bool = False,
        max_rows: int = 1000,
        more_hint: str = "",
    ) -> None:
        self._by_rank = by_rank
        self._prefix = prefix
        self._more_hint = more_hint
        self._max_rows = max_rows
        self._rows = _Newest(max_rows)
        self._new = _Newest(max_rows)
        self._partial: dict[tuple[int, str], str] = {}

    @property
    def num_rows(self) -> int:
        """Lines so far, also those no longer held."""
        return self._rows.num_lines

    def feed(self, rank: int, stream: str, text: str) -> None:
        """Add a piece of a rank's output."""
        *lines, tail = (self._partial.pop((rank, stream), "") + text).split("\n")
        for line in lines:
            self._add(Row((rank,), stream, last_state(line)))
        if tail:
            self._partial[rank, stream] = tail

    def mark(self, rank: int, made: Made) -> None:
        """Put a display behind what a rank has printed; a line that it hasn't ended is complete then."""
        self._complete([key for key in self._partial if key[0] == rank])
        self._add(Row((rank,), DISPLAY, made.token, (made,)))

    def clear(self, rank: int) -> None:
        """Forget what a rank has printed and displayed."""
        self._rows.clear(rank)
        self._new.clear(rank)
        self._partial = {key: text for key, text in self._partial.items() if key[0] != rank}

    def say(self, text: str) -> None:
        """Add a line that no rank has printed."""
        self._add(Row((), NOTE, text))

    def leave_out(self, num_lines: int) -> None:
        """Count lines that weren't fed here, and all that came before them."""
        self._rows.leave_out(num_lines)
        self._new.leave_out(num_lines)

    def _add(self, row: Row) -> None:
        self._rows.add(row)
        self._new.add(row)

    def finish(self) -> None:
        """Count unfinished lines as lines."""
        self._complete(list(self._partial))

    def _complete(self, keys: list[tuple[int, str]]) -> None:
        for rank, stream in keys:
            text = last_state(self._partial.pop((rank, stream)))
            if text.strip():
                self._add(Row((rank,), stream, text))

    def rows(self) -> list[Row]:
        """Return the newest `max_rows` lines, and the displays."""
        rows = self._rows.rows()
        if self._by_rank:
            rows.sort(key=lambda row: row.ranks[:1])
        return self._noted(rows, self._rows.num_hidden)

    def partial_rows(self) -> list[Row]:
        """Return the unfinished lines in their present state."""
        return [Row((r,), s, last_state(t)) for (r, s), t in self._partial.items() if last_state(t).strip()]

    is_holding = False

    def drain(self) -> str:
        """Return the lines since the last call, for a plain text stream."""
        return joined_rows(self.drain_rows(), prefix=self._prefix)

    def drain_rows(self, num_holds: int = 0) -> list[Row]:
        """Return the rows since the last call; none waits for others."""
        new, self._new = self._new, _Newest(self._max_rows)
        return self._noted(new.rows(), new.num_hidden)

    def _noted(self, rows: list[Row], num_hidden: int) -> list[Row]:
        """Return rows behind a note of how many lines aren't among them."""
        if not num_hidden:
            return rows
        where = f"; all of them: {self._more_hint}" if self._more_hint else ""
        return [Row((), NOTE, f"... {num_hidden:,} lines not shown{where}"), *rows]
