"""Computes the mean of a value over ranks, once all have reported it."""

from __future__ import annotations

MAX_OPEN = 64
"""Maximum number of steps of a value that wait for reports of ranks; beyond that, the mean of the oldest is
taken over the ranks that reported. So a value recorded by only one rank has a mean, too.
"""


class Means:
    """The means over ranks of one run's values.

    Args:
        num_ranks: number of ranks of the mesh, which may change.

    >>> means = Means(2)
    >>> means.add("loss", 0, 0, 1.0), means.add("loss", 1, 0, 3.0)
    ([], [(0, 2.0)])
    >>> means.add("accuracy", 0, 5, 0.5), means.rest()
    ([], [('accuracy', 5, 0.5)])
    """

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._open: dict[str, dict[int, dict[int, float]]] = {}
        """Values by name, step and rank."""

    def add(self, name: str, rank: int, step: int, value: float) -> list[tuple[int, float]]:
        """Add a rank's value; return the steps that are now complete with their means, in order."""
        steps = self._open.setdefault(name, {})
        steps.setdefault(step, {})[rank] = value
        over = {each for each in steps if len(steps[each]) >= self.num_ranks}
        if len(steps) - len(over) > MAX_OPEN:
            over.add(min(steps))
        return [(each, _mean(steps.pop(each))) for each in sorted(over)]

    def rest(self) -> list[tuple[str, int, float]]:
        """Return the remaining means at the end of the run: name, step, mean."""
        left, self._open = self._open, {}
        return [
            (name, step, _mean(found))
            for name, steps in left.items()
            for step, found in sorted(steps.items())
        ]


def _mean(found: dict[int, float]) -> float:
    return sum(found.values()) / len(found)
