"""Reports failures of tasks whose results were never read, on stderr, like those of calls."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def say_unread(what: str, errors: Sequence[BaseException]) -> None:
    """Print a warning about failed tasks whose results were dropped without being read.

    Args:
        what: the description of the work, such as `the map of train`.
        errors: the errors; the first one is printed.
    """
    if sys.stderr is None:  # the interpreter ends
        return
    many = f" ({len(errors)} items)" if len(errors) > 1 else ""
    kind = "" if str(errors[0]) else type(errors[0]).__name__
    sys.stderr.write(f"{what} has failed, and its results were not read{many}: {errors[0]}{kind}\n")
    sys.stderr.flush()
