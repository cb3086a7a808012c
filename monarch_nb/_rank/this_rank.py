"""The rank that this process is, for code that has no reference to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from monarch_nb._transport import process_context

if TYPE_CHECKING:
    from monarch_nb._rank.main import Rank


def this_rank() -> Rank | None:
    """Return the rank that this process is; None in an interpreter that only becomes one."""
    return cast("Rank | None", process_context.rank)
