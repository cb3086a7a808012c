"""Tutorials of what isn't installed are skipped, and the run says so."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

NEEDS = {"14_titan.ipynb": "torchtitan"}

_NAMES = pytest.StashKey[str]()

collect_ignore = [name for name, package in NEEDS.items() if find_spec(package) is None]


def pytest_configure(config: pytest.Config) -> None:
    """Make a directory for the names of this process' meshes: several may run tutorials (`pytest -n 3`)."""
    folder = tempfile.TemporaryDirectory(prefix="mnb-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    config.stash[_NAMES] = folder.name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Start a tutorial's kernel as a reader's, whatever tests that ran here before have set. What cells show
    is compared: nothing of it may change meanwhile.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_NB_LIVE", "0")
        for name in ("MONARCH_NB_PRELOAD", "MONARCH_NB_WITH_KERNEL"):
            patch.delenv(name, raising=False)
        for name in ("XDG_RUNTIME_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, item.config.stash[_NAMES])
        yield


def pytest_report_header() -> list[str]:
    """Return a line for each tutorial that is skipped."""
    return [f"{name} is skipped: {NEEDS[name]} isn't installed" for name in collect_ignore]
