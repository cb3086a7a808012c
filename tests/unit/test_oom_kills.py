"""Kills for lack of memory: the kernel says only how many. Earlier ones aren't taken for a new one."""

from __future__ import annotations

import pytest

from monarch_nb._wire import process
from monarch_nb._wire.process import OomKills


def test_only_kills_of_the_last_seconds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    num = 5
    monkeypatch.setattr(process, "count_oom_kills", lambda: num)
    kills = OomKills()
    assert not kills.take_kill(), "those before this process began"
    num = 7
    assert [kills.take_kill() for _ in range(3)] == [True, True, False]
    num = 9
    kills.look()
    assert kills.take_kill(), "one that came just before a look"
    kills.look()
    assert not kills.take_kill(), "another process' kill, seconds ago"
    num = 10
    assert kills.take_kill() and not kills.take_kill()
    kills.look()
    kills.look()
    assert not kills.take_kill()
