"""Types of the displays of ranks, and of a cell's end on a rank, as the journal keeps them: JSON that the
rank has made.
"""

from __future__ import annotations

import msgspec

from monarch_nb._protocol.base import Plain
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.kept import Kept
from monarch_nb._protocol.states import CellStatus

MimeBundle = dict[str, Plain]
"""Data by MIME type, as in Jupyter. The values are the user's, and may contain NaN, which `msgspec.json`
refuses; so `json` writes them.
"""


class Bar(msgspec.Struct, frozen=True):
    """The state of a progress bar; an empty text: it has gone. `key` is the same as long as it lives."""

    key: str
    text: str


class Shown(Kept, frozen=True, omit_defaults=True):
    """An item that a rank shows between its lines: rich output, a progress bar, or a clearing of what was
    shown.

    Attributes:
        display_id: id under which it is updated later; None: never.
        update: whether it replaces the display of that id.
        clear: "now", or "wait" until something new is shown; empty: nothing is cleared.

    Example:
        >>> Shown.of_json(Shown({"text/plain": "42"}).as_json()).data
        {'text/plain': '42'}
    """

    data: MimeBundle = {}
    metadata: MimeBundle = {}
    display_id: str | None = None
    update: bool = False
    clear: str = ""
    bar: Bar | None = None


class CellEnd(Kept, frozen=True, omit_defaults=True):
    """The end of a cell on a rank.

    Attributes:
        value: of the last expression; None: it has none.
        ename, evalue, traceback: of the error that was raised.
        exception: the error itself, pickled and in base64, if it can travel and isn't large.
        when: time at which the error was raised, or the rank was lost, in seconds since the epoch.
        seconds: the cell's run time; None: unknown.
        end: how the rank's process has ended, if it's lost.
    """

    status: CellStatus
    value: MimeBundle | None = None
    ename: str = ""
    evalue: str = ""
    traceback: str = ""
    exception: str | None = None
    when: float = 0.0
    seconds: float | None = None
    end: RankExit | None = None
