"""Meshes here have no use for torch; at the end of a run it's said how much was tried."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hostile import TRIES


@pytest.fixture(scope="module", autouse=True)
def without_torch() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_NB_PRELOAD", "none")
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TRIES:
        parts = ", ".join(f"{num:,} {what}" for what, num in TRIES.items())
        terminalreporter.write_line(f"hostile tries that held: {TRIES.total():,} ({parts})")
