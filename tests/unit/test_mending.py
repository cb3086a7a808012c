"""What a rank puts back of the interpreter, seen without a rank."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import pytest

import monarch_nb._rank.worker  # noqa: F401 - what a rank has
from monarch_nb._rank import mending
from monarch_nb._rank.mending import Mender, note_modules


class Pipe:
    """As a rank's pipe whose descriptors are open."""

    def settle(self) -> list[str]:
        return []


@pytest.fixture
def mender(monkeypatch: pytest.MonkeyPatch) -> Mender:
    monkeypatch.setattr(mending, "_known_modules", {})
    monkeypatch.setattr(mending.signal, "getsignal", lambda number: on_interrupt)
    note_modules()
    return Mender(Pipe(), on_interrupt)  # type: ignore[arg-type]


def on_interrupt(number: int, frame: Any) -> None:
    raise AssertionError


def test_what_was_noted_before_the_fork_is_not_written_to(
    mender: Mender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that held each of the zygote's modules would copy their pages at its start."""
    modules = [m for m in list(sys.modules.values()) if m is not None]

    def held() -> list[int]:
        return [sys.getrefcount(module) for module in modules]

    before = held()
    new = ModuleType("new_module")
    monkeypatch.setitem(sys.modules, "new_module", new)
    held_of_new = sys.getrefcount(new)
    mender.learn()
    assert sys.getrefcount(new) == held_of_new + 1
    assert held() == before


def test_modules_that_were_taken_out_come_back(mender: Mender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "late_module", ModuleType("late_module"))
    monkeypatch.setitem(sys.modules, "refused_module", None)
    mender.learn()
    before = dict(sys.modules)
    for name in ("late_module", "refused_module", "json", "threading"):
        monkeypatch.delitem(sys.modules, name)
    (text,) = mender.mend()
    assert text.startswith(
        "modules were taken out of sys.modules: json, late_module, refused_module, threading"
    )
    assert sys.modules == before and sys.modules["threading"] is threading
    assert mender.mend() == []


def test_a_module_that_was_imported_anew_is_the_one_that_comes_back(
    mender: Mender, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = ModuleType("again_module")
    monkeypatch.setitem(sys.modules, "again_module", old)
    mender.learn()
    del sys.modules["again_module"]
    new = sys.modules["again_module"] = ModuleType("again_module")
    mender.learn()
    for name in ("again_module", "json"):
        monkeypatch.delitem(sys.modules, name)
    mender.mend()
    assert sys.modules["again_module"] is new
