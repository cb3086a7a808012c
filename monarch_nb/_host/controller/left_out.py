"""Leaves lines out of what a watcher is sent that doesn't keep up: it's told how many."""

from __future__ import annotations

import re

from monarch_nb._journal import record as records
from monarch_nb._journal.record import Record

_LINE_END = re.compile(rb"[\r\n]")


class LeftOut:
    """The lines that one watcher isn't sent.

    >>> left_out = LeftOut()
    >>> record = Record(records.TEXT, "stdout", 0, 3, 7, 1, 0.0, b"loss 0.5\\nlo")
    >>> left_out.leave_out(records.pack(record))
    b''
    >>> sent = left_out.go_on(records.pack(record._replace(data=b"ss 0.4\\nloss 0.3\\n")))
    >>> note, rest = records.unpack(sent)
    >>> records.NUMBER.unpack(note.data), rest.data
    ((2,), b'loss 0.3\\n')
    """

    def __init__(self) -> None:
        self._num_lines = 0
        self._has_note = False
        self._cut: set[tuple[int, int, str]] = set()
        """Whose last line that was left out isn't ended: its rest is left out, too."""

    def leave_out(self, data: bytes) -> bytes:
        """Return packed records without text."""
        kept = []
        self._has_note = True
        for record in records.unpack(data):
            if record.kind == records.TEXT:
                self._num_lines += record.data.count(b"\n")
                self._note_end(record)
            else:
                kept.append(records.pack(record))
        return b"".join(kept)

    def _note_end(self, record: Record) -> None:
        key = (record.group, record.rank, record.stream)
        if record.data[-1:] in b"\r\n":
            self._cut.discard(key)
        else:
            self._cut.add(key)

    def go_on(self, data: bytes) -> bytes:
        """Return what is sent of packed records when lines are left out no more: first how many were; and not
        the rest of one whose beginning was.
        """
        note, self._has_note = self._note() if self._has_note else b"", False
        return note + (b"".join(map(self._without_rest, records.unpack(data))) if self._cut else data)

    def _note(self) -> bytes:
        number, self._num_lines = self._num_lines + len(self._cut), 0
        return records.pack(Record(records.LEFT_OUT, "stdout", 0, 0, 0, 0, 0.0, records.NUMBER.pack(number)))

    def _without_rest(self, record: Record) -> bytes:
        key = (record.group, record.rank, record.stream)
        if record.kind != records.TEXT or key not in self._cut:
            return records.pack(record)
        end = _LINE_END.search(record.data)
        if end is None:
            return b""
        self._cut.discard(key)
        rest = record.data[end.end() :]
        return records.pack(record._replace(data=rest)) if rest else b""
