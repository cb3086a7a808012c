"""A module that another thread is importing isn't there yet."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from monarch_nb._wire.loaded import loaded

SLOW = """
import sys
begun, goes_on = sys.modules["test_loaded_events"].begun, sys.modules["test_loaded_events"].goes_on
begun.set()
goes_on.wait(60)
Tensor = int
"""


class Events:
    begun, goes_on = threading.Event(), threading.Event()


def test_a_module_is_there_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_module.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "test_loaded_events", Events)  # type: ignore[arg-type]
    assert loaded("slow_module") is None
    importer = threading.Thread(target=__import__, args=("slow_module",))
    importer.start()
    assert Events.begun.wait(60)
    assert "slow_module" in sys.modules and loaded("slow_module") is None
    Events.goes_on.set()
    importer.join(60)
    assert loaded("slow_module").Tensor is int
    assert loaded("sys") is sys
