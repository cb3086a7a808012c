"""Lines of ranks for a plain text stream that is written to from time to time: folded as by `Fold`, and quick
where there is nothing to fold.

Ranks that print much at once mostly print different lines: numbers, names of files. Then each line stays as
it is, and making a row of it (2 us) would take longer than all else. So text is kept until it's drained;
lines that only one rank has printed are prefixed as one piece of text (0.2 us a line), others go to a `Fold`.
"""

from __future__ import annotations

from monarch_nb._display.fold import Fold, prefix_of, unended_state


class Printed:
    """The lines of some ranks between two writes.

    Args:
        num_ranks: how many ranks are known; `feed` takes others, too. With one, lines have no prefix.

    >>> printed = Printed(2)
    >>> printed.feed(0, "stdout", "epoch 1\\nloss 0.5\\n")
    >>> printed.feed(1, "stdout", "epoch 1\\nloss 0.7\\n")
    >>> print(printed.drain(), end="")
    [0-1] epoch 1
    [0] loss 0.5
    [1] loss 0.7
    >>> printed.feed(1, "stdout", "a\\nb\\n")
    >>> print(printed.drain(), end="")
    [1] a
    [1] b
    """

    def __init__(self, num_ranks: int) -> None:
        self._has_prefix = num_ranks > 1
        self._fold = Fold(range(num_ranks), max_rows=None, prefix=self._has_prefix)
        self._texts: list[tuple[int, str, str]] = []
        """Rank, stream and whole lines, as they came."""
        self._tails: dict[tuple[int, str], list[str]] = {}
        """Pieces of the line that hasn't ended, by rank and stream."""
        self._is_plain = True
        """Whether the texts are stdout without carriage returns."""

    def feed(self, rank: int, stream: str, text: str) -> None:
        """Add a piece of a rank's output; it may end anywhere."""
        lines, line_end, rest = text.rpartition("\n")
        tail = self._tails.get((rank, stream))
        if tail is None:
            tail = self._tails[rank, stream] = []
        elif tail and line_end:
            lines = "".join((*tail, lines))
            tail.clear()
        if rest:
            if tail and "\r" in rest:  # a progress bar: what it said before doesn't count
                rest = "".join((*tail, rest))
                tail.clear()
            tail.append(unended_state(rest))
        if not line_end:
            return
        if stream != "stdout" or "\r" in lines:
            self._is_plain = False
        self._texts.append((rank, stream, lines))

    def drain(self, num_kept: int = 0) -> str:
        """Return the lines that ended since the last call.

        Args:
            num_kept: how many lines are remembered, at which lines of later ranks may stand.
        """
        texts, self._texts = self._texts, []
        is_plain, self._is_plain = self._is_plain, True
        if not texts:
            return ""
        if is_plain and _differ(texts):
            return "".join([self._prefixed(rank, lines) for rank, _, lines in texts])
        for rank, stream, lines in texts:
            if not self._fold.knows(rank):
                self._fold.add_rank(rank)
            self._fold.feed(rank, stream, f"{lines}\n")
        text = self._fold.drain()
        self._fold.forget_drained(num_kept)
        return text

    def _prefixed(self, rank: int, lines: str) -> str:
        if not self._has_prefix:
            return f"{lines}\n"
        prefix = prefix_of((rank,))
        return "".join((prefix, lines.replace("\n", f"\n{prefix}"), "\n"))


def _differ(texts: list[tuple[int, str, str]]) -> bool:
    """Return whether no line was printed by two ranks."""
    by_rank: dict[int, set[str]] = {}
    for rank, _, lines in texts:
        by_rank.setdefault(rank, set()).update(lines.split("\n"))
    seen: set[str] = set()
    for lines_of_rank in by_rank.values():
        if not seen.isdisjoint(lines_of_rank):
            return False
        if len(by_rank) > 1:
            seen |= lines_of_rank
    return True
