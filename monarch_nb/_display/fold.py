"""Folds the output of many ranks into one list of rows, in which equal lines are merged.

Ranks run the same program at different speeds, so their lines are nearly the same sequence, skewed in time.
`Fold` keeps one ordered list of rows; a row is a line and the set of ranks that printed it. A new line of a
rank joins an equal row further down than what that rank printed last, or becomes a new row at the end.

Invariants, whatever the interleaving and however the text was cut into chunks:

* the rows that contain a rank, read from top to bottom, are exactly the lines and displays of that rank, in
  order;
* a row contains a rank at most once, and lines that differ in anything, a number too, are different rows; but
  on stderr, a warning or a line that tells of a failure may differ in its values (`monarch_nb._folding`), and
  what actors log in their names: its row then lists them.

A line that only one rank printed so far *floats*: it stands at the end, where it happened, and when its rank
next joins a row further up, the floating line moves up in front of that row. So `hello 0, same` of rank 0
followed by `hello 1, same` of rank 1 folds to three rows, while a lone warning in epoch 57 of rank 0's log
stays at epoch 57. A lagging rank looks for a partner a bounded number of rows (`LOOKAHEAD_ROWS`) after its
own last one, then among the newest; so a chance match far away does not tear the list apart.

Rows form a linked list whose labels increase with gaps: "is it after" is one comparison, an insertion touches
no other row. Equal lines are found by a dict from text to rows, sorted by label. A line costs about 1 us when
it joins and 2 us when it is new. A carriage return overwrites its line and the last state counts. The list is
bounded: beyond `max_rows` the middle is hidden with a row that says so, and far beyond that it is forgotten.

A display is a row of its own stream (`DISPLAY`), and folds by the same rules; its text is a token that is
equal on ranks that show the same. It isn't counted as a line, and neither hidden nor forgotten.

Not thread-safe: `CellView` has the lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from monarch_nb._folding import NAMED, Values, is_trouble, merge, split, split_name
from monarch_nb._shape.rank_set import format_ranks

if TYPE_CHECKING:
    from monarch_nb._display.displays import Made

LOOKAHEAD_ROWS = 1000
FLOATING_ROWS = 64
"""How many unmatched lines of a rank float before they are settled."""
KEPT_PER_SHOWN = 50
"""Rows held in memory for each one shown, so that a rank far behind still finds its partners."""
NOTE = "note"
"""The stream of a row that no rank printed."""
DISPLAY = "display"
"""The stream of a row that is no line: something that ranks display."""

_GAP = 1 << 60
_by_label = attrgetter("label")


class Row(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One line and the ranks that printed it; or a display, and what each of its ranks shows there.

    >>> Row((0, 1, 2), "stdout", "epoch 1")
    Row(ranks=(0, 1, 2), stream='stdout', text='epoch 1')
    """

    ranks: tuple[int, ...]
    stream: str
    text: str
    shown: tuple[Made, ...] = ()


class _Line:
    __slots__ = (
        "drained",
        "label",
        "mask",
        "next",
        "num_held",
        "prev",
        "stream",
        "text",
        "touched",
        "values",
    )

    def __init__(self, label: int, stream: str, text: str, mask: int) -> None:
        self.label = label
        self.stream = stream
        self.text = text
        self.mask = mask
        self.drained = 0
        self.num_held = 0
        self.touched = True
        self.values: dict[int, Any] | None = None
        """Of a warning or failure, `Values` by rank: `text` is then its pattern. Of a display, what each rank
        shows.
        """
        self.prev: _Line | None = None
        self.next: _Line | None = None


class _Place:
    """The position of one rank in the fold: its last settled row, its floating rows after that, its
    unfinished line per stream.
    """

    # Not a `msgspec.Struct`: it's written to for each line, and Python specialises that for plain slots only.
    __slots__ = ("anchor", "bit", "floating", "partial")

    def __init__(self, bit: int, anchor: _Line) -> None:
        self.bit = bit
        self.anchor = anchor
        self.floating: deque[_Line] = deque()
        self.partial: dict[str, list[str]] = {}

    def settle(self, row: _Line) -> None:
        """Settle all rows up to this one."""
        while self.floating and self.floating[0].label <= row.label:
            self.floating.popleft()
        self.anchor = row


class Fold:
    """The lines of some ranks, folded.

    `prefix` says whether `drain` names the ranks; by default, when there are several. `max_rows=None` keeps
    everything.

    >>> fold = Fold([0, 1])
    >>> fold.feed(0, "stdout", "epoch 1\\nloss 0.5\\n")
    >>> fold.feed(1, "stdout", "epoch 1\\nloss 0.7\\n")
    >>> print(fold.drain(), end="")
    [0-1] epoch 1
    [0] loss 0.5
    [1] loss 0.7
    """

    def __init__(
        self,
        ranks: Sequence[int],
        *,
        max_rows: int | None = 1000,
        more_hint: str = "",
        prefix: bool | None = None,
    ) -> None:
        self._head = self._last = _Line(0, "", "", 0)
        self._ranks = set(ranks)
        self._all = sum(1 << rank for rank in self._ranks)
        self.is_holding = False
        """Whether the last `drain` has kept rows back."""
        self._places: dict[int, _Place] = {}
        self._owners: dict[int, _Place] = {}
        self._index: dict[str, dict[str, list[_Line]]] = {}
        self._max_rows = max_rows
        self._more_hint = more_hint
        self._prefix = len(self._ranks) > 1 if prefix is None else prefix
        self._num_rows = 0
        self._num_forgotten = 0
        self._num_undrained = 0
        self._touched: list[_Line] = []
        self._left_out: dict[_Line, int] = {}
        """Rows that stand for lines which weren't fed here, and how many each stands for."""

    @property
    def num_rows(self) -> int:
        """Folded lines so far, also those no longer held, and those that were left out."""
        return self._num_held + sum(self._left_out.values()) - len(self._left_out)

    @property
    def _num_held(self) -> int:
        return self._num_rows + self._num_forgotten

    def knows(self, rank: int) -> bool:
        """Say whether this rank's lines are folded here."""
        return rank in self._ranks

    def add_rank(self, rank: int) -> None:
        """Fold the lines of one more rank."""
        self._ranks.add(rank)
        self._all |= 1 << rank
        self._new_place(rank, self._last)

    def _new_place(self, rank: int, anchor: _Line) -> _Place:
        if rank not in self._ranks:
            raise KeyError(rank)
        place = self._places[rank] = _Place(1 << rank, anchor)
        self._owners[place.bit] = place
        return place

    def feed(self, rank: int, stream: str, text: str) -> None:
        """Add a piece of a rank's output; it may end anywhere, also between `\r` and `\n`."""
        place = self._places.get(rank) or self._new_place(rank, self._head)
        pieces = place.partial.get(stream)
        if pieces is None:
            pieces = place.partial[stream] = []
        if "\n" not in text and "\r" not in text:
            pieces.append(text)
            return
        if pieces:
            text = "".join((*pieces, text))
            pieces.clear()
        lines = text.split("\n")
        tail = lines.pop()
        for line in lines:
            self._add(place, stream, last_state(line) if "\r" in line else line)
        if tail:
            pieces.append(unended_state(tail))

    def mark(self, rank: int, made: Made) -> None:
        """Put a display behind what a rank has printed; a line that it hasn't ended is complete then."""
        place = self._places.get(rank) or self._new_place(rank, self._head)
        self._complete(place)
        row = self._find(place, DISPLAY, made.token)
        if row is None:
            row = self._append(place, DISPLAY, made.token)
            row.values = {}
            self._num_rows -= 1  # it's no line
        else:
            self._join(place, row)
        assert row.values is not None
        row.values[rank] = made

    def clear(self, rank: int) -> None:
        """Forget what a rank has printed and displayed."""
        place = self._places.pop(rank, None)
        if place is None:
            return
        del self._owners[place.bit]
        for row in list(self._walk()):
            if row.mask == place.bit:
                self._remove(row)
            else:
                row.mask &= ~place.bit
                row.drained &= ~place.bit

    def _remove(self, row: _Line) -> None:
        """Remove a row that no rank has any more."""
        equal = self._index[row.stream][row.text]
        equal.remove(row)
        if not equal:
            del self._index[row.stream][row.text]
        if row in self._touched:
            self._touched.remove(row)
        self._unlink(row)
        self._num_rows -= row.stream != DISPLAY
        assert row.prev is not None
        for place in self._places.values():
            if place.anchor is row:
                place.anchor = row.prev

    def say(self, text: str) -> None:
        """Add a line that no rank has printed."""
        row = _Line(self._last.label + _GAP, NOTE, text, 0)
        row.prev = self._last
        self._last.next = self._last = row
        self._index.setdefault(NOTE, {}).setdefault(text, []).append(row)
        self._touched.append(row)
        self._num_rows += 1

    def leave_out(self, num_lines: int) -> None:
        """Add a row for lines that aren't fed here. Unfinished lines are complete then: their ends aren't fed
        either.
        """
        self.finish()
        self.say(self._note(num_lines).text)
        self._left_out[self._last] = num_lines

    def finish(self) -> None:
        """Turn unfinished lines into complete ones. Later text starts new lines."""
        for place in self._places.values():
            self._complete(place)

    def _complete(self, place: _Place) -> None:
        for stream, pieces in place.partial.items():
            text = last_state("".join(pieces))
            pieces.clear()
            if text.strip():
                self._add(place, stream, text)

    def rows(self) -> list[Row]:
        """Return the complete lines and the displays; beyond `max_rows`, a row of stream `NOTE` replaces the
        lines in the middle.
        """
        cap = self._max_rows
        if cap is None or self._num_held <= cap:
            return _in_public(self._walk())
        top = _up_to(self._walk(), cap // 2)
        tail = _up_to(self._walk_back(), cap - cap // 2)[::-1]
        shown = {*top, *tail}
        middle = self._displays_but(shown) if DISPLAY in self._index else []
        left_out = sum(number - 1 for row, number in self._left_out.items() if row not in shown)
        note = _public(self._note(self._num_held - cap + left_out), 0)
        return [*_in_public(top), note, *_in_public(middle), *_in_public(tail)]

    def _displays_but(self, known: set[_Line]) -> list[_Line]:
        found = [row for rows in self._index[DISPLAY].values() for row in rows if row not in known]
        return sorted(found, key=_by_label)

    def partial_rows(self) -> list[Row]:
        """Return the unfinished lines in their present state, such as progress bars, equal ones merged."""
        masks: dict[tuple[str, str], int] = {}
        for place in self._places.values():
            for stream, pieces in place.partial.items():
                text = last_state("".join(pieces)) if pieces else ""
                if text.strip():
                    masks[stream, text] = masks.get((stream, text), 0) | place.bit
        return [Row(_ranks_of(mask), stream, text) for (stream, text), mask in masks.items()]

    def drain(self) -> str:
        """Return the lines completed since the last call, for a plain text stream."""
        parts: list[str] = []
        for line, new in self._drained(self._take_touched(0)):
            if line.values or line.stream == NOTE:
                parts.append(joined_rows((_public(line, new),), prefix=self._prefix))
            else:  # nearly all: a row for each would take as long as all the rest
                parts += (_prefix_of(new), line.text, "\n") if self._prefix else (line.text, "\n")
        return "".join(parts)

    def drain_rows(self, num_holds: int = 0) -> list[Row]:
        """Return the rows completed since the last call.

        A row returned before that more ranks have joined since is returned again, for these ranks only.

        Args:
            num_holds: how many calls keep back a row that some ranks haven't printed yet, and with it what
                comes after it.
        """
        return [_public(line, new) for line, new in self._drained(self._take_touched(num_holds))]

    def _take_touched(self, num_holds: int) -> list[_Line]:
        """Return the rows that were added or joined since the last call, in their order; see `drain_rows`."""
        touched = sorted(self._touched, key=_by_label)
        held = self._first_to_hold(touched, num_holds) if num_holds else len(touched)
        touched, self._touched = touched[:held], touched[held:]
        self.is_holding = bool(self._touched)
        if self._num_undrained:
            touched.insert(0, self._note(self._num_undrained))
            self._num_undrained = 0
        return touched

    @staticmethod
    def _drained(touched: Iterable[_Line]) -> Iterator[tuple[_Line, int]]:
        """Note that rows are returned; yield each with the ranks that are new, as bits."""
        for line in touched:
            new = line.mask & ~line.drained
            line.drained, line.touched, line.num_held = line.mask, False, 0
            if new or line.stream == NOTE:  # and not of a rank that has cleared it since
                yield line, new

    def forget_drained(self, num_kept: int) -> None:
        """Forget the complete lines of a fold without `max_rows` if more than `num_kept` are held and `drain`
        has returned all.

        A rank that prints one of them later than others gets a row of its own, as it would from `drain` in
        any case.
        """
        if self._num_rows <= num_kept or self._touched:
            return
        for row in self._walk():
            row.prev = None  # avoids a reference cycle, so that each is freed at once
        self._num_forgotten += self._num_rows
        self._num_rows = 0
        self._head.next, self._last = None, self._head
        self._index.clear()
        for place in self._places.values():
            place.anchor = self._head
            place.floating.clear()

    def _first_to_hold(self, touched: list[_Line], num_holds: int) -> int:
        """Return the index of the first row that waits for more ranks; every row waits only once."""
        first = len(touched)
        for at in range(len(touched) - 1, -1, -1):
            line = touched[at]
            if line.stream != NOTE and line.mask != self._all and line.num_held < num_holds:
                line.num_held += 1
                first = at
        return first

    def _add(self, place: _Place, stream: str, text: str) -> None:
        if stream == "stderr" and len(self._ranks) > 1:
            values: Values = ()
            if is_trouble(text):
                text, values = split(text)
            elif NAMED in text:
                text, values = split_name(text)
            if values:
                self._add_trouble(place, stream, text, values)
                return
        row = place.anchor.next
        if row is None or row.text != text or place.floating or row.stream != stream:
            row = self._find(place, stream, text)
        if row is None:
            self._append(place, stream, text)
        else:
            self._join(place, row)

    def _add_trouble(self, place: _Place, stream: str, pattern: str, values: Values) -> None:
        row = self._find(place, stream, pattern)
        if row is None:
            row = self._append(place, stream, pattern)
            row.values = {}
        else:
            self._join(place, row)
        assert row.values is not None
        row.values[place.bit.bit_length() - 1] = values

    def _find(self, place: _Place, stream: str, text: str) -> _Line | None:
        equal = self._index.get(stream, {}).get(text)
        if equal is None or len(self._ranks) == 1 or equal[-1].label <= place.anchor.label:
            return None
        near = place.anchor.label
        recent = self._last.label - LOOKAHEAD_ROWS * _GAP
        found = _first(equal, near, near + LOOKAHEAD_ROWS * _GAP, place.bit)
        if found is None and recent > near:
            found = _first(equal, recent, self._last.label, place.bit)
        return found

    def _append(self, place: _Place, stream: str, text: str) -> _Line:
        row = _Line(self._last.label + _GAP, stream, text, place.bit)
        row.prev = self._last
        self._last.next = self._last = row
        texts = self._index.get(stream)
        if texts is None:
            texts = self._index[stream] = {}
        if text in texts:
            texts[text].append(row)
        else:
            texts[text] = [row]
        self._touched.append(row)
        place.floating.append(row)
        if len(place.floating) > FLOATING_ROWS:
            place.anchor = place.floating.popleft()
        self._num_rows += 1
        if self._max_rows is not None and self._num_rows > KEPT_PER_SHOWN * self._max_rows:
            self._forget(self._max_rows)
        return row

    def _join(self, place: _Place, row: _Line) -> None:
        owner = self._owners.get(row.mask)
        if owner is not None and owner.anchor.label < row.label:
            owner.settle(row)
        row.mask |= place.bit
        if not row.touched:
            row.touched = True
            self._touched.append(row)
        if place.floating:
            self._pull_up(place, row)
        place.anchor = row

    def _pull_up(self, place: _Place, target: _Line) -> None:
        """Move the floating rows of a rank that come after `target` to just before it."""
        movers = [row for row in place.floating if row.label > target.label]
        place.floating.clear()
        if not movers:
            return
        for row in movers:
            equal = self._index[row.stream][row.text]
            del equal[bisect_left(equal, row.label, key=_by_label)]
            self._unlink(row)
        before = target.prev
        assert before is not None  # the head stands before every row
        if (target.label - before.label) // (len(movers) + 1) == 0:
            self._relabel()
        step = (target.label - before.label) // (len(movers) + 1)
        for row in movers:
            row.label = before.label + step
            row.prev, row.next = before, target
            before.next = target.prev = row
            before = row
            insort(self._index[row.stream][row.text], row, key=_by_label)

    def _unlink(self, row: _Line) -> None:
        assert row.prev is not None
        row.prev.next = row.next
        if row.next is None:
            self._last = row.prev
        else:
            row.next.prev = row.prev

    def _relabel(self) -> None:
        for position, row in enumerate(self._walk(), 1):
            row.label = position * _GAP

    def _walk(self) -> Iterator[_Line]:
        row = self._head.next
        while row is not None:
            yield row
            row = row.next

    def _walk_back(self) -> Iterator[_Line]:
        row = self._last
        while row.prev is not None:
            yield row
            row = row.prev

    def _forget(self, max_rows: int) -> None:
        """Drop the lines in the middle: keep displays, what is shown at the top, and the newer half."""
        rows = self._walk()
        top = _up_to(rows, max(1, max_rows // 2))[-1]
        middle = _up_to(rows, self._num_rows // 2)
        first, last, end = middle[0].label, middle[-1].label, middle[-1].next
        dropped = [row for row in middle if row.stream != DISPLAY]
        kept = [top, *(row for row in middle if row.stream == DISPLAY)]
        for place in self._places.values():
            while place.floating and place.floating[0].label <= last:
                place.anchor = place.floating.popleft()
            if first <= place.anchor.label <= last:
                place.anchor = kept[bisect_right(kept, place.anchor.label, key=_by_label) - 1]
        for stream, text in {(row.stream, row.text) for row in dropped}:
            texts = self._index[stream]
            texts[text] = [row for row in texts[text] if not first <= row.label <= last]
            if not texts[text]:
                del texts[text]
        self._num_undrained += sum(self._left_out.get(row, 1) for row in dropped if row.touched)
        self._touched = [
            row for row in self._touched if not first <= row.label <= last or row.stream == DISPLAY
        ]
        for before, after in pairwise(kept):
            before.next, after.prev = after, before
        kept[-1].next = end
        if end is None:
            self._last = kept[-1]
        else:
            end.prev = kept[-1]
        self._num_rows -= len(dropped)
        self._num_forgotten += len(dropped)
        self._relabel()

    def _note(self, num_hidden: int) -> _Line:
        where = f"; all of them: {self._more_hint}" if self._more_hint else ""
        return _Line(0, NOTE, f"... {num_hidden:,} lines not shown{where}", 0)


def last_state(line: str) -> str:
    """Return the visible text of a line with carriage returns, as a terminal shows it: what was written after
    the last one.

    >>> last_state("10%\\r100%\\r")
    '100%'
    """
    return line.rstrip("\r").rpartition("\r")[2]


def unended_state(text: str) -> str:
    """Return what of a line's beginning counts: a carriage return at its end may be followed by a line end.

    >>> unended_state("10%\\r100%\\r")
    '100%\\r'
    """
    return last_state(text) + "\r" if text.endswith("\r") else last_state(text)


def prefix_of(ranks: Sequence[int]) -> str:
    """Return the ranks as a prefix of a line, with the space: `[0-3,7] `; empty for no ranks."""
    return f"[{format_ranks(ranks)}] " if ranks else ""


@lru_cache(maxsize=4096)
def _prefix_of(mask: int) -> str:
    return prefix_of(_ranks_of(mask))


def _first(equal: list[_Line], after: int, until: int, bit: int) -> _Line | None:
    for position in range(bisect_right(equal, after, key=_by_label), len(equal)):
        row = equal[position]
        if row.label > until:
            return None
        if not row.mask & bit:
            return row
    return None


def joined_rows(rows: Iterable[Row], *, prefix: bool) -> str:
    """Return rows as text, each with a line end."""
    return "".join([f"{prefix_of(row.ranks) if prefix else ''}{row.text}\n" for row in rows])


def _up_to(rows: Iterable[_Line], num_lines: int) -> list[_Line]:
    """Return the first rows until there are so many lines; displays don't count."""
    found: list[_Line] = []
    if num_lines > 0:
        for row in rows:
            found.append(row)
            num_lines -= row.stream != DISPLAY
            if not num_lines:
                break
    return found


def _in_public(rows: Iterable[_Line]) -> list[Row]:
    return in_rank_order([_public(row, row.mask) for row in rows])


def _public(row: _Line, mask: int) -> Row:
    """Return a row as some of its ranks have it."""
    ranks = _ranks_of(mask)
    if not row.values:
        return Row(ranks, row.stream, row.text)
    values = {rank: row.values[rank] for rank in ranks}
    if row.stream == DISPLAY:
        return Row(ranks, DISPLAY, row.text, tuple(values.values()))
    return Row(ranks, row.stream, merge(row.text, values))


@lru_cache(maxsize=4096)
def _ranks_of(mask: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(mask.bit_length()) if mask >> rank & 1)


def in_rank_order(rows: list[Row]) -> list[Row]:
    """Return rows with neighbours that share no rank in rank order; the order of each rank's lines stays.

    Which rank was faster by a millisecond tells nothing, and readers look for rank 3 after rank 2. A line
    that no rank has printed stays where it is.

    >>> [row.ranks for row in in_rank_order([Row((2,), "stdout", "b"), Row((0,), "stdout", "a")])]
    [(0,), (2,)]
    """
    result: list[Row] = []
    run: list[Row] = []
    seen: set[int] = set()
    for row in rows:
        if not row.ranks or not seen.isdisjoint(row.ranks):
            result += sorted(run, key=_first_rank)
            run, seen = [], set()
        if not row.ranks:
            result.append(row)
            continue
        run.append(row)
        seen.update(row.ranks)
    return result + sorted(run, key=_first_rank)


def _first_rank(row: Row) -> int:
    return row.ranks[0]
