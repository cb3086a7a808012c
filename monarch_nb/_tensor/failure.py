"""Combines the reports of ranks about a failure: the operation, the ranks, and the user's line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monarch_nb._rank.tensor.protocol import Report
from monarch_nb._shape.rank_set import name_ranks
from monarch_nb._tensor.place import Place
from monarch_nb.exceptions import RankFailure, RemoteException, SupervisionError

_NAMES = {
    "own.load": "restoring",
    "own.save": "saving",
    "own.whole": "reading",
    "own.module": "making the module",
    "own.module_forward": "the module's forward",
    "own.module_backward": "the module's backward",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a command.

    Attributes:
        seq: its number.
        reports: reports of the ranks on which it failed.
        num_ranks: number of ranks of the engine.
        place: place in the user's code that made the command.
        is_partial: whether other ranks were stopped because of it, so that later results are lost.
    """

    seq: int
    reports: tuple[Report, ...]
    num_ranks: int
    place: Place | None
    is_partial: bool = False

    def error(self) -> RemoteException:
        """Return the error to raise where a program waits for the value."""
        return RemoteException("\n".join(self._lines()), self._failures())

    def _lines(self) -> list[str]:
        first = self.reports[0]
        message = first.message.partition("\nException raised from")[0].strip()
        of = f" of {self.num_ranks}" if len(self.reports) < self.num_ranks else ""
        ranks = name_ranks([r.rank for r in self.reports])
        lines = [f"{_NAMES.get(first.op, first.op)} failed on {ranks}{of}: {first.kind}: {message}"]
        if self.place is not None:
            lines.append(f"  {self.place}")
        if self.is_partial:
            lines.append(
                "  the other ranks were stopped, for they'd have waited for it; values made since "
                "are lost, earlier ones are as they were"
            )
        else:
            lines.append("  values that depend on it are lost; all others are as they were")
        return lines

    def _failures(self) -> Sequence[RankFailure]:
        groups: dict[tuple[str, str, str], list[int]] = {}
        for each in self.reports:
            groups.setdefault((each.kind, each.message, each.traceback), []).append(each.rank)
        return [
            RankFailure(tuple(ranks), kind, message, trace)
            for (kind, message, trace), ranks in groups.items()
        ]


def reason_of(error: SupervisionError) -> str:
    """Return in one line which ranks are dead, and how they ended."""
    if not error.failures:
        return str(error).splitlines()[0]
    ends = [f"{name_ranks(f.ranks)}: {_first_line(f.message)}" for f in error.failures]
    return "; ".join(dict.fromkeys(ends))


def lost_while(error: SupervisionError, place: Place | None) -> SupervisionError:
    """Return the error of a wait for a value, while which ranks have died.

    Args:
        place: of the command that computes the value.
    """
    if not error.failures:
        return error
    what = place.op if place is not None and place.op else "a value"
    of = f"  {place}\n" if place is not None and str(place) else ""
    ranks = name_ranks(sorted({rank for f in error.failures for rank in f.ranks}))
    return SupervisionError(
        f"{_NAMES.get(what, what)} has no result, for the mesh has lost {ranks}\n{of}"
        "  after a heal, monarch_nb.heal_mesh(mesh), tensors of which other ranks have all parts live on",
        error.failures,
    )


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
