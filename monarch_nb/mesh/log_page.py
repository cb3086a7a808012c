"""Pages of the ranks' output: backwards from the end, and forwards from a position.

The pages of a log view. `History.logs` is for reading on and on.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb._journal import record as records
from monarch_nb._protocol.cells import OutputPart, ReadOutput
from monarch_nb._protocol.logs import LogLine, LogPage, Stream
from monarch_nb.actor.handle import placement_of, session_of
from monarch_nb.exceptions import MeshUsageError

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

SEARCH_BYTES = 32 << 20
"""Length of the journal that one page searches for matching lines."""
MAX_LINE = 10_000
LONGEST_BYTES = 4 << 20
"""Distance around a page that is searched for the ends of lines cut by its bounds."""

Key = tuple[int, str]


def read_page(
    mesh: Mesh, ranks: Sequence[int], *, grep: str = "", before: int | None = None, limit: int = 500
) -> LogPage:
    """Return the last lines of ranks, or the last ones before a position.

    Args:
        grep: only lines in which this regular expression matches.
        limit: about how many lines; more come if a stretch of the journal holds more. Fewer, or none, with
            `before` set: the page has been looked for in `SEARCH_BYTES` of the journal; go on from there.

    Raises:
        MeshUsageError: if `grep` is no regular expression.
    """
    pattern = compile_pattern(grep)
    parts: list[OutputPart] = []
    found: list[LogLine] = []
    while True:
        parts.insert(0, _read(mesh, ranks, before=before))
        begin, end, start = parts[0].begin, parts[-1].end, parts[0].start
        before = begin if begin > start else None
        found = [*_whole_lines(mesh, ranks, parts[:1], pattern), *found]
        if before is None or len(found) >= limit or end - begin >= SEARCH_BYTES:
            return LogPage(tuple(found), before, end)


def _whole_lines(
    mesh: Mesh, ranks: Sequence[int], parts: Sequence[OutputPart], pattern: re.Pattern[str] | None
) -> list[LogLine]:
    """Return the lines that begin in a part of the journal: the continuation of an earlier line is left out,
    and the last lines are completed.
    """
    lines = Lines(pattern)
    data = [part.data for part in parts]
    keys = {(r.rank, r.stream) for each in data for r in records.unpack(each)}
    lines.skip = _unfinished_before(mesh, parts[0], keys)
    found = [line for each in data for line in lines.feed(each)]
    after, now = parts[-1].end, parts[-1].now
    lines.only = {key for key, rest in lines.rests.items() if rest}
    limit = after + LONGEST_BYTES
    while lines.only and after < min(now, limit):
        part = _read(mesh, sorted({rank for rank, _ in lines.only}), after=after)
        found += lines.feed(part.data)
        after = part.end
    return found + lines.finish()


def _unfinished_before(mesh: Mesh, part: OutputPart, keys: set[Key]) -> set[Key]:
    """Return the ranks with an unfinished line where a part of the journal begins."""
    begin, start, found, left = part.begin, part.start, set(), set(keys)
    limit = begin - LONGEST_BYTES
    while left and begin > max(start, limit):
        earlier = _read(mesh, sorted({rank for rank, _ in left}), before=begin)
        begin = earlier.begin
        last = {(r.rank, r.stream): r.data for r in records.unpack(earlier.data)}
        found |= {key for key in left & last.keys() if not last[key].endswith(b"\n")}
        left -= last.keys()
    return found


class LogTail:
    """A reader that follows the output of ranks from a position on, in complete lines.

    Raises:
        MeshUsageError: if `grep` is no regular expression.
    """

    def __init__(self, ranks: Sequence[int], after: int, grep: str = "") -> None:
        self.after = after
        self._ranks = tuple(ranks)
        self._lines = Lines(compile_pattern(grep))

    def read(self, mesh: Mesh) -> list[LogLine]:
        """Return the next lines; none if no line has been completed since."""
        part = _read(mesh, self._ranks, after=self.after)
        self.after = part.end
        return self._lines.feed(part.data)


def compile_pattern(grep: str) -> re.Pattern[str] | None:
    """Return a regular expression; None if it's empty.

    Raises:
        MeshUsageError: saying what is wrong with it.
    """
    try:
        return re.compile(grep) if grep else None
    except re.error as error:
        raise MeshUsageError(f"{grep!r} is not a regular expression: {error}") from None


def _read(
    mesh: Mesh, ranks: Sequence[int], *, after: int | None = None, before: int | None = None
) -> OutputPart:
    return session_of(mesh).request(ReadOutput(placement_of(mesh).group, list(ranks), after, before))


class Lines:
    """The assembler of lines from pieces. A line overwritten by a carriage return keeps its last text.

    Attributes:
        rests: incomplete lines, by rank and stream.
        skip: streams whose first line is left out, because it began earlier.
        only: streams of which only the first line is wanted.
    """

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self.rests: dict[Key, str] = {}
        self.skip: set[Key] = set()
        self.only: set[Key] | None = None
        self._pattern = pattern
        self._decoders: dict[Key, Any] = {}
        self._when = 0.0

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that these records complete."""
        found: list[LogLine] = []
        for record in records.unpack(data):
            key = (record.rank, record.stream)
            decoder = self._decoders.get(key)
            if decoder is None:
                decoder = self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
            *whole, self.rests[key] = (self.rests.get(key, "") + decoder.decode(record.data)).split("\n")
            self._when = record.when
            for text in whole:
                found += self._line(key, text)
        return found

    def finish(self) -> list[LogLine]:
        """Return the unfinished lines as lines, at the end."""
        return [line for key, text in self.rests.items() if text for line in self._line(key, text)]

    def _line(self, key: Key, text: str) -> list[LogLine]:
        if key in self.skip:
            self.skip.discard(key)
            return []
        if self.only is not None:
            if key not in self.only:
                return []
            self.only.discard(key)
        shown = text.rstrip("\r").rpartition("\r")[2]
        if self._pattern is not None and not self._pattern.search(shown):
            return []
        stream: Stream = "stderr" if key[1] == "stderr" else "stdout"
        return [LogLine(key[0], stream, self._when, shown[:MAX_LINE])]
