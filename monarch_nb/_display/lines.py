"""Lines of many ranks that are not folded: in order of arrival, or rank by rank (`%%mesh --group
order|rank|none`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from monarch_nb._display.fold import NOTE, Row, last_state, prefix_of


class Lines:
    """The unfolded counterpart of `Fold`: it takes the same input and keeps each line separately.

    Args:
        by_rank: all of rank 0's lines first, then those of rank 1, and so on.
        prefix: name the rank before each line.
        max_rows: of more than these, the oldest are counted only.

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
        self._rows: deque[Row] = deque(maxlen=max_rows)
        self._new: deque[Row] = deque(maxlen=max_rows)
        self._partial: dict[tuple[int, str], str] = {}
        self.num_rows = 0
        self._num_undrained = 0

    def feed(self, rank: int, stream: str, text: str) -> None:
        """Add a piece of a rank's output."""
        *lines, tail = (self._partial.pop((rank, stream), "") + text).split("\n")
        for line in lines:
            self._add(Row((rank,), stream, last_state(line)))
        if tail:
            self._partial[rank, stream] = tail

    def clear(self, rank: int) -> None:
        """Forget what a rank has printed."""
        for rows in (self._rows, self._new):
            kept = [row for row in rows if row.ranks != (rank,)]
            if rows is self._rows:
                self.num_rows -= len(rows) - len(kept)
            else:
                self._num_undrained -= len(rows) - len(kept)
            rows.clear()
            rows.extend(kept)
        self._partial = {key: text for key, text in self._partial.items() if key[0] != rank}

    def say(self, text: str) -> None:
        """Add a line that no rank has printed."""
        self._add(Row((), NOTE, text))

    def _add(self, row: Row) -> None:
        self.num_rows += 1
        self._num_undrained += 1
        self._rows.append(row)
        self._new.append(row)

    def finish(self) -> None:
        """Turn unfinished lines into complete ones."""
        for (rank, stream), text in self._partial.items():
            if last_state(text).strip():
                self._add(Row((rank,), stream, last_state(text)))
        self._partial.clear()

    def rows(self) -> list[Row]:
        """Return the lines, the newest `max_rows` of them."""
        rows = list(self._rows)
        if self._by_rank:
            rows.sort(key=lambda row: row.ranks[:1])
        hidden = self.num_rows - len(rows)
        return [Row((), NOTE, self._note(hidden)), *rows] if hidden else rows

    def partial_rows(self) -> list[Row]:
        """Return the unfinished lines in their present state."""
        return [Row((r,), s, last_state(t)) for (r, s), t in self._partial.items() if last_state(t).strip()]

    is_holding = False

    def drain(self, num_holds: int = 0) -> str:
        """Return the lines since the last call; no line is held back."""
        hidden = self._num_undrained - len(self._new)
        parts = [self._note(hidden) + "\n"] if hidden else []
        parts += [f"{prefix_of(row.ranks) if self._prefix else ''}{row.text}\n" for row in self._new]
        self._new.clear()
        self._num_undrained = 0
        return "".join(parts)

    def _note(self, num: int) -> str:
        where = f"; all of them: {self._more_hint}" if self._more_hint else ""
        return f"... {num:,} lines not shown{where}"
