"""Prints one clear error for any failure of a command, in the terminal's wording, and returns its exit
status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from monarch_nb._commands.refusal import explanation

INTERRUPTED = 130
BROKEN_PIPE = 141


def exit_status(run: Callable[[], int | None], typed: str, in_words: Callable[[str], str]) -> int:
    """Run a command; return its exit status. What it raises is said on stderr.

    Args:
        typed: the command, as in `monarch-nb start`.
        in_words: makes messages the terminal's own.
    """
    try:
        status = int(run() or 0)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone: nobody can be told, and Python must not report it either when it
        # flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        text = in_words(explanation(error, typed))
        print(text if text.startswith("monarch-nb ") else f"monarch-nb: {text}", file=sys.stderr)
        return 1
