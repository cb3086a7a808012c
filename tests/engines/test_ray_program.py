"""The program that asks Ray is kept for the next question; here, a shell script stands for it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import wait_for_exit

from monarch_nb.job.engines import EngineError, ray_program

T = 30


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Path]:
    """An interpreter that answers with its pid, and does what each question says besides."""
    path = tmp_path / "python"
    path.write_text('#!/bin/bash\nwhile read -r line; do\n. "$0.does"\necho $$\ndone\n')
    path.chmod(0o700)
    yield path
    ray_program.close_idle()


def ask(python: Path, does: str = "", *, is_repeatable: bool = True) -> int:
    """Ask a question; return the process that has answered."""
    python.with_name("python.does").write_text(does)
    return int(ray_program.ask(str(python), {"address": "there"}, is_repeatable=is_repeatable))


def test_one_program_answers_questions_that_follow_each_other(python: Path) -> None:
    first = ask(python)
    assert ask(python) == first
    ray_program.close_idle()
    assert wait_for_exit(first)
    assert ask(python) != first


def test_questions_at_once_do_not_wait_for_each_other(python: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    found: list[int] = []
    slow = threading.Thread(target=lambda: found.append(ask(python, f"read < {tmp_path}/gate")))
    slow.start()
    with open(tmp_path / "gate", "w"):  # it waits there now
        quick = ask(python)
    slow.join(T)
    assert found != [quick]
    kept = {ask(python), ask(python)}
    assert len(kept) == 1 and kept < {quick, *found}
    (other,) = {quick, *found} - kept
    assert wait_for_exit(other), "one is enough"


@pytest.mark.parametrize("is_repeatable", [True, False])
def test_a_program_that_was_not_asked_for_long_has_ended(python: Path, *, is_repeatable: bool) -> None:
    first = ask(python)
    fails_once = f"if [ $$ = {first} ]; then exit 0; fi"
    assert ask(python, fails_once, is_repeatable=is_repeatable) != first


def test_what_may_be_asked_twice_is_when_ray_was_lost_meanwhile(python: Path) -> None:
    first = ask(python)
    fails_once = f"if [ $$ = {first} ]; then echo Ray is gone >&2; exit 1; fi"
    second = ask(python, fails_once)
    assert second != first
    os.kill(second, signal.SIGKILL)
    assert wait_for_exit(second)
    third = ask(python)
    with pytest.raises(EngineError, match="ray at there: Ray is gone"):
        ask(python, f"if [ $$ = {third} ]; then echo Ray is gone >&2; exit 1; fi", is_repeatable=False)


def test_a_failure_is_said_in_its_words(python: Path) -> None:
    with pytest.raises(EngineError, match=r"^ray at there: no; not so$"):
        ask(python, "echo no >&2; echo not so >&2; exit 3")
    with pytest.raises(EngineError, match=r"ray at there: .* has ended without an answer"):
        ask(python, "exit 0")
    with pytest.raises(EngineError, match="none isn't installed here"):
        ask(python.with_name("none"))


def test_a_program_that_gives_no_answer_is_ended(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(python)
    monkeypatch.setattr(ray_program, "DRIVER_S", 0.2)
    with pytest.raises(EngineError, match=r"python -P .*ray_driver.py has given no answer within 0.2 s"):
        ask(python, "exec sleep 1000")
    assert wait_for_exit(first)
