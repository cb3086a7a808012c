"""Records the place in the user's code where each command was made, to be looked up when the command
fails.
"""

from __future__ import annotations

import linecache
import sys
from collections import deque
from dataclasses import dataclass
from types import CodeType, FrameType

from monarch_nb._cells import name_of
from monarch_nb._frames.cells import is_of_kernel
from monarch_nb._frames.owner import Owner, owner_of_file

KEPT = 65_536
_is_users: dict[int, tuple[bool, CodeType]] = {}
"""By id of the code, which is kept alive here: a code object's own hash covers all its contents."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's, and the layer whose forward made the command.

    Attributes:
        code, at: innermost frame of the user's, and its instruction (`frame.f_lasti`); None if there is none.
        module: path of the layer, as in `model.blocks.3`, or "".
        op: name of the operation.
    """

    code: CodeType | None
    at: int
    module: str
    op: str = ""

    @property
    def line(self) -> int:
        """Its line number. It's looked up here: for a long function that takes longer than a command."""
        lines = self.code.co_lines() if self.code is not None else ()
        return next((line or 0 for begin, end, line in lines if begin <= self.at < end), 0)

    def __str__(self) -> str:
        """Return up to two lines of text for an error."""
        layer = [f"in forward of {self.module}"] if self.module else []
        return ", ".join([*layer, *([self._where()] if self.code is not None else [])])

    def _where(self) -> str:
        assert self.code is not None
        file = self.code.co_filename
        shown = name_of(file) or ("a cell of this notebook" if is_of_kernel(file) else file)
        text = linecache.getline(file, self.line).strip()
        return f"{shown}, line {self.line}, in {self.code.co_name}" + (f":  {text}" if text else "")


def users_frame() -> tuple[CodeType | None, int]:
    """Return the innermost frame of user code: its code object and the number of its instruction."""
    return users_place(sys._getframe(1), "", "")[:2]


def users_place(frame: FrameType | None, module: str, op: str) -> tuple[CodeType | None, int, str, str]:
    """Return the fields of the `Place` of a command: the innermost frame of user code is this frame or one
    outside of it.
    """
    while frame is not None:
        code = frame.f_code
        found = _is_users.get(id(code))
        if found is None:
            found = _is_users[id(code)] = owner_of_file(code.co_filename) is Owner.USER, code
        if found[0]:
            return code, frame.f_lasti, module, op
        frame = frame.f_back
    return None, 0, module, op


class Places:
    """The places of the last commands, by sequence number."""

    def __init__(self) -> None:
        self._kept: deque[tuple[CodeType | None, int, str, str]] = deque(maxlen=KEPT)
        self.add = self._kept.append
        self.extend = self._kept.extend

    @property
    def last(self) -> tuple[CodeType | None, int, str, str]:
        """The place of the last command."""
        return self._kept[-1]

    def of(self, seq: int, count: int) -> Place | None:
        """Return the place of a command; None if it's no longer stored.

        Args:
            count: the number of commands so far.
        """
        behind = count - seq
        return Place(*self._kept[-behind]) if 0 < behind <= len(self._kept) else None
