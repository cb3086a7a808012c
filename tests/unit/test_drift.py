"""In what a host differs, in words; and an interpreter that can't list its packages."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest

from monarch_nb._host.agent.package_service import look
from monarch_nb._sync.env.packages import PackageDigest
from monarch_nb.mesh import drift
from monarch_nb.mesh.drift import package_text

NUMPY = PackageDigest("2.1", "aa")


def test_versions_builds_and_what_is_missing_are_told_and_what_is_only_there_is_not() -> None:
    here = {"einops": PackageDigest("0.8", "bb"), "numpy": NUMPY, "rich": PackageDigest("14", "cc")}
    there = {"numpy": PackageDigest("1.26", "dd"), "rich": PackageDigest("14", "ee", True), "more": NUMPY}
    assert package_text(here, there) == (
        "einops isn't there, numpy 1.26 (2.1 here), rich 14 edited by hand: "
        "%mesh sync --env, or see %mesh diff --env --hosts"
    )
    assert "rich 14 of another build: " in package_text(here, {**here, "rich": PackageDigest("14", "ee")})
    assert package_text({"numpy": NUMPY}, there | {"numpy": NUMPY}) == ""


def test_many_are_counted() -> None:
    here = {f"p{n}": NUMPY for n in range(8)}
    assert package_text(here, {}).startswith("p0 isn't there, p1 isn't there, p2 isn't there, 5 more: ")


def test_an_interpreter_that_can_not_say_what_it_has_is_named_with_its_last_words() -> None:
    found = look(
        [sys.executable, "-c", "from monarch_nb._sync.env.installed import main; main()"], dict(os.environ)
    )
    assert found["python"].version == sys.version.split()[0] and "pytest" in found
    with pytest.raises(
        RuntimeError, match="can't list its packages: ModuleNotFoundError: No module named 'none'"
    ):
        look([sys.executable, "-c", "import none"], dict(os.environ))


class Asked:
    """A session with a host that differs, whatever it is asked."""

    def __init__(self) -> None:
        self.hosts: list[list[int]] = []
        self.lets_go = threading.Event()
        self.begun = threading.Semaphore(0)

    def request(self, message: object) -> None:
        pass

    def differences(self, _session: object, hosts: list[int]) -> dict[int, str]:
        self.hosts.append(hosts)
        self.begun.release()
        assert self.lets_go.wait(45)
        return dict.fromkeys(hosts, "differs")


def test_however_often_hosts_are_to_be_compared_again_it_is_done_once_more_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = Asked()
    monkeypatch.setattr(drift, "differences", session.differences)
    assert drift.compare_again(session) is None, "no host has differed"
    monkeypatch.setitem(drift._known, session, {0: "", 1: "differs"})
    thread = drift.compare_again(session)
    assert thread is not None and session.begun.acquire(timeout=45)
    assert [drift.compare_again(session) for _ in range(5)] == [None] * 5
    session.lets_go.set()
    thread.join(45)
    assert session.hosts == [[1], [1]]
    again = drift.compare_again(session)
    assert again is not None
    again.join(45)
    assert session.hosts == [[1]] * 3
