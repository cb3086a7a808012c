"""Does something again and again, whatever happens to it once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger("monarch_nb")


async def repeat(function: Callable[[], Awaitable[None]], every_s: float, what: str) -> None:
    """Call and await a function for ever, with pauses. An error (no free descriptor, an unreadable directory)
    is logged when it's another one than the last time, and the next call tries again.

    Args:
        every_s: seconds between the end of a call and the next.
        what: begins the message of an error.
    """
    before = ""
    while True:
        try:
            await function()
            before = ""
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text != before:
                _log.exception("%s; trying again", what)
            before = text
        await asyncio.sleep(every_s)
