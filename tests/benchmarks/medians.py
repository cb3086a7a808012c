"""Medians of measurements, with the interval in which they lie."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

RESAMPLES = 2000


def median_text(found: Sequence[float], digits: int) -> str:
    """Return a median, and the interval of 95 of 100 medians of as many numbers drawn from the same ones."""
    medians = sorted(statistics.median(random.choices(found, k=len(found))) for _ in range(RESAMPLES))
    outside = RESAMPLES // 40
    low, high = medians[outside], medians[-outside - 1]
    return f"{statistics.median(found):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the median of the ratios of rounds, with its interval."""
    return median_text([a / b for a, b in zip(ours, theirs, strict=True)], 3)
