from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conda_environment import make_conda, missing_for_conda
from environments import NO_OWN_INTERPRETER, OF_DISTRIBUTION, Made, make_venv


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let uv's cache be empty: hosts look for content in it, and this user's may have any number of files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_CACHE_DIR", str(tmp_path_factory.mktemp("uv")))
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A venv with two wheels that pip has installed."""
    folder = tmp_path_factory.mktemp("made")
    found = make_venv(folder / "venv")
    found.install(found.wheel(folder, "alpha", "1.0"), found.wheel(folder, "beta", "2.0", script=True))
    return found


@pytest.fixture(scope="session")
def conda(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A conda prefix that rattler has installed."""
    missing = NO_OWN_INTERPRETER if OF_DISTRIBUTION else missing_for_conda()
    if missing:
        pytest.skip(missing)
    return make_conda(tmp_path_factory.mktemp("conda"))


@pytest.fixture
def cache_file(tmp_path: Path) -> str:
    return str(tmp_path / "cache" / "content.sqlite")
