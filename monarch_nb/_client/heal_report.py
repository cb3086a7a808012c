"""The report of a heal or a resize, made from what the controller sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from monarch_nb._protocol.healing import Report
from monarch_nb._shape import format_ranks, name_ranks
from monarch_nb._units import elapsed_text


@dataclass(frozen=True)
class HealReport:
    """The report of a heal or a resize: what was done, and what could not be.

    Attributes:
        ranks: ranks that were started again.
        hosts: hosts that were replaced.
        actors: ranks on which actors were created again, by the actors' name.
        messages: other actions, each as a sentence.
        problems: losses that could not be repaired, each as a sentence.
        seconds: duration.
    """

    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    actors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float = 0.0

    @classmethod
    def of(cls, found: Report) -> HealReport:
        """Make a report of the controller's answer."""
        return cls(
            ranks=tuple(found.ranks),
            hosts=tuple(found.hosts),
            actors={name: tuple(ranks) for name, ranks in found.actors.items()},
            messages=tuple(found.messages),
            problems=tuple(found.problems),
            seconds=found.seconds,
        )

    def __str__(self) -> str:
        lines = []
        if self.hosts:
            lines.append(f"host{'s' * (len(self.hosts) > 1)} {', '.join(self.hosts)} replaced")
        if self.ranks:
            lines.append(f"{name_ranks(self.ranks)} started anew")
        lines += [
            f"actor {name!r} made again on {name_ranks(ranks)}"
            for name, ranks in self.actors.items()
            if ranks
        ]
        lines += [*self.messages, *self.problems]
        return "\n".join([*lines, elapsed_text(self.seconds)]) if lines else "nothing was lost"

    def __repr__(self) -> str:
        return f"<HealReport: ranks {format_ranks(self.ranks) or 'none'}, {elapsed_text(self.seconds)}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))
