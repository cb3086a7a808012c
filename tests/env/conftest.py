from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import Made, make_venv


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A venv with two wheels that pip has installed."""
    folder = tmp_path_factory.mktemp("made")
    found = make_venv(folder / "venv")
    found.install(found.wheel(folder, "alpha", "1.0"), found.wheel(folder, "beta", "2.0", script=True))
    return found


@pytest.fixture
def cache_file(tmp_path: Path) -> str:
    return str(tmp_path / "cache" / "content.sqlite")
