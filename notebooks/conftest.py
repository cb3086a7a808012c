"""Tutorials of what isn't installed are skipped, and the run says so."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec

import pytest

NEEDS = {"14_titan.ipynb": "torchtitan"}

collect_ignore = [name for name, package in NEEDS.items() if find_spec(package) is None]


def pytest_configure(config: pytest.Config) -> None:
    """Let the names of meshes be each process' own where several run tutorials (`pytest -n 3`)."""
    if hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="mnb-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        os.environ["XDG_RUNTIME_DIR"] = os.environ["JUPYTER_RUNTIME_DIR"] = folder.name


def pytest_report_header() -> list[str]:
    """Return a line for each tutorial that is skipped."""
    return [f"{name} is skipped: {NEEDS[name]} isn't installed" for name in collect_ignore]
