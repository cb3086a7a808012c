"""A cell's result on one rank, as the journal keeps it: JSON, made by the rank (`_rank`), or here for a rank
that has died.
"""

from __future__ import annotations

from msgspec.structs import replace

from monarch_nb._protocol.cells import CellFailure
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.shown import CellEnd
from monarch_nb._protocol.states import CellStatus

INTERRUPT = "KeyboardInterrupt"
MAX_MESSAGE = 2000
"""Maximum length of an error's text in the summary of a cell."""


def read_failure(rank: int, body: bytes) -> CellFailure:
    """Return the error of a rank's result."""
    found = CellEnd.of_json(body)
    return CellFailure(rank, found.ename, found.evalue[:MAX_MESSAGE], found.when)


def as_interrupted(body: bytes) -> bytes:
    """Return the result of an error as that of an interrupt by the user."""
    return replace(CellEnd.of_json(body), status=CellStatus.INTERRUPTED).as_json()


def never_begun(when: float) -> bytes:
    """Return the result of a rank on which a cell was interrupted before it began."""
    return CellEnd(CellStatus.INTERRUPTED, ename=INTERRUPT, when=when).as_json()


def lost(end: RankExit, when: float) -> bytes:
    """Return the result of a rank that has died."""
    return CellEnd(CellStatus.LOST, when=when, end=end).as_json()
