"""One JupyterLab and one browser for the tests here; skipped where there is no chromium.

They end with this folder: playwright keeps an event loop running in the thread, in which others could have
none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import CHROMIUM, Lab

pytest.importorskip("jupyterlab", reason="needs JupyterLab: pip install jupyterlab")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")


TEST_S = 600
"""A test waits for many things one after the other, each for `PATIENCE_MS` at most."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if not CHROMIUM:
        pytest.skip("needs chromium: apt-get install chromium")
    opened = Lab(tmp_path_factory.mktemp("lab"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("needs chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield started
        started.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots go: MONARCH_NB_PICTURES, to look at them, or nowhere in particular."""
    path = Path(os.environ.get("MONARCH_NB_PICTURES", tmp_path))
    path.mkdir(parents=True, exist_ok=True)
    return path
