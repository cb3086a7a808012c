"""Tutorials of what isn't installed are skipped, and the run says so."""

from __future__ import annotations

from importlib.util import find_spec

NEEDS = {"14_titan.ipynb": "torchtitan"}

collect_ignore = [name for name, package in NEEDS.items() if find_spec(package) is None]


def pytest_report_header() -> list[str]:
    """Return a line for each tutorial that is skipped."""
    return [f"{name} is skipped: {NEEDS[name]} isn't installed" for name in collect_ignore]
