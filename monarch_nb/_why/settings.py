"""The number of seconds without progress after which a `%%mesh` cell is explained automatically."""

from __future__ import annotations

import os

from monarch_nb._units import parse_duration

DEFAULT_S = 30.0
_chosen: list[float | None] = []
"""Empty: as the environment says."""


def why_after_s() -> float | None:
    """Return the seconds, or None: never."""
    return _chosen[-1] if _chosen else _of_environment()


def set_why_after(seconds: float | None) -> None:
    """Set the seconds; None turns it off.

    Raises:
        ValueError: if they aren't more than 0.
    """
    if seconds is not None and seconds <= 0:
        raise ValueError(f"why-after takes a time of more than 0, or off; not {seconds:g}")
    _chosen[:] = [seconds]


def _of_environment() -> float | None:
    """Return the seconds in MONARCH_NB_WHY_AFTER: `30`, `30s`, `5m`, `off`; an unreadable value counts as not
    set.
    """
    text = os.environ.get("MONARCH_NB_WHY_AFTER", "").strip().lower()
    if text in ("off", "0"):
        return None
    try:
        return parse_duration(text) if text else DEFAULT_S
    except ValueError:
        return DEFAULT_S
