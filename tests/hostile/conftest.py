"""At the end of a run it's said how much was tried."""

from __future__ import annotations

import pytest
from hostile import TRIES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TRIES:
        parts = ", ".join(f"{num:,} {what}" for what, num in TRIES.items())
        terminalreporter.write_line(f"hostile tries that held: {TRIES.total():,} ({parts})")
