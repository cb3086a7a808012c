"""What ranks have printed, a page at a time: backwards from the end, and on from where one stands.

The pages of a log view. `History.logs` is for reading on and on.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from monarch_nb._journal import record as records
from monarch_nb.exceptions import MeshUsageError

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

SEARCH_BYTES = 32 << 20
"""How much of the journal one page looks through for lines that match."""
MAX_LINE = 10_000


@dataclass(frozen=True)
class LogLine:
    """A line that a rank has written; `when` it was complete."""

    rank: int
    stream: str
    when: float
    text: str


@dataclass(frozen=True)
class LogPage:
    """Lines, oldest first.

    Attributes:
        before: where the page before this one ends, for `read_page`; None: there is none.
        after: where this page ends, for `read_on`.
    """

    lines: tuple[LogLine, ...]
    before: int | None
    after: int

    def as_dict(self) -> dict[str, Any]:
        """Return this as plain data, for JSON."""
        return {"lines": [asdict(line) for line in self.lines], "before": self.before, "after": self.after}


def read_page(
    mesh: Mesh, ranks: Sequence[int], *, grep: str = "", before: int | None = None, limit: int = 500
) -> LogPage:
    """Return the last lines of ranks, or the last ones before a position.

    Args:
        grep: only lines in which this regular expression matches.
        limit: about how many lines; more come if a stretch of the journal holds more. Fewer, or none, with `before` set: the page has been
            looked for in `SEARCH_BYTES` of the journal; go on from there.

    Raises:
        MeshUsageError: if `grep` is no regular expression.
    """
    pattern = compile_pattern(grep)
    found: list[LogLine] = []
    after: int | None = None
    searched = 0
    while True:
        part = _read(mesh, ranks, before=before)
        after = part["end"] if after is None else after
        searched += part["end"] - part["begin"]
        found = [*_lines(part["data"], pattern), *found]
        before = part["begin"] if part["begin"] > part["start"] else None
        if before is None or len(found) >= limit or searched >= SEARCH_BYTES:
            return LogPage(tuple(found), before, after)


def read_on(mesh: Mesh, ranks: Sequence[int], after: int, *, grep: str = "") -> LogPage:
    """Return the next lines after a position; none if nothing has been printed since.

    Raises:
        MeshUsageError: if `grep` is no regular expression.
    """
    part = _read(mesh, ranks, after=after)
    return LogPage(tuple(_lines(part["data"], compile_pattern(grep))), None, part["end"])


def compile_pattern(grep: str) -> re.Pattern[str] | None:
    """Return a regular expression; None if it's empty.

    Raises:
        MeshUsageError: saying what is wrong with it.
    """
    try:
        return re.compile(grep) if grep else None
    except re.error as error:
        raise MeshUsageError(f"{grep!r} is not a regular expression: {error}") from None


def _read(mesh: Mesh, ranks: Sequence[int], **where: Any) -> dict[str, Any]:
    found: dict[str, Any] = mesh._session.request("read_output", group=mesh._group, ranks=list(ranks), **where)
    return found


def _lines(data: bytes, pattern: re.Pattern[str] | None) -> Iterable[LogLine]:
    """Yield the lines in packed records; of a line that was overwritten (by a carriage return), what was there last."""
    rests: dict[tuple[int, str], str] = {}
    decoders: dict[tuple[int, str], Any] = {}
    last = 0.0
    for record in records.unpack(data):
        key = (record.rank, record.stream)
        decoder = decoders.get(key) or decoders.setdefault(key, codecs.getincrementaldecoder("utf-8")("replace"))
        *whole, rests[key] = (rests.get(key, "") + decoder.decode(record.data)).split("\n")
        last = record.when
        for text in whole:
            yield from _line(key, last, text, pattern)
    for key, text in rests.items():
        if text:
            yield from _line(key, last, text, pattern)


def _line(key: tuple[int, str], when: float, text: str, pattern: re.Pattern[str] | None) -> Iterable[LogLine]:
    shown = text.rstrip("\r").rpartition("\r")[2]
    if pattern is None or pattern.search(shown):
        yield LogLine(key[0], key[1], when, shown[:MAX_LINE])
