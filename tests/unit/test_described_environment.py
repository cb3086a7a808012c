"""The description of a mesh's environment in its journal."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from monarch_nb._host.controller.environment import describe_environment


def test_versions_are_those_that_python_knows() -> None:
    packages = describe_environment("here", {}).packages
    expected = {name: metadata.version(name) for name in ("numpy", "ipython", "pyzmq", "cloudpickle")}
    assert expected.items() <= packages.items()


def test_the_first_on_the_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, record in (
        ("first", "torch-2.13.0+cpu.dist-info"),
        ("first", "numpy-2.4.0rc1-py3.11.egg-info"),
        ("second", "torch-1.0.dist-info"),
        ("second", "torch_geometric-2.6.dist-info"),
        ("second", "IPython-9.1.0.dist-info"),
    ):
        (tmp_path / place / record).mkdir(parents=True)
    places = (tmp_path / "missing", tmp_path / "first", tmp_path / "second")
    monkeypatch.setattr(sys, "path", [str(place) for place in places])
    packages = dict(describe_environment("here", {}).packages)
    assert packages.pop("monarch_nb")
    assert packages == {"torch": "2.13.0+cpu", "numpy": "2.4.0rc1", "ipython": "9.1.0"}
