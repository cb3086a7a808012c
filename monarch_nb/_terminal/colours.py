"""Removes colours in pipes and files, and everywhere if NO_COLOR is set (https://no-color.org), including
those in output and tracebacks of ranks.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from monarch_nb._display import ansi

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


class Colourless:
    """A text stream without colours; if it isn't a terminal, without any escape sequences."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()

    def write(self, text: str) -> int:
        """Write a text."""
        if "\x1b" in text:
            text = _COLOUR.sub("", text) if self._is_terminal else ansi.strip(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def wants_colours(stream: TextIO) -> bool:
    """Say whether colours may be written to a stream."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


@contextmanager
def colours_as_wanted() -> Iterator[None]:
    """Have stdout and stderr take colours only where somebody wants them."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (s if wants_colours(s) else Colourless(s) for s in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
