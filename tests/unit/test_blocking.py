"""What a thread is blocked on, as its frames say."""

from __future__ import annotations

import builtins
import getpass
import sys
import threading
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from monarch_nb._protocol.hang import Blocked
from monarch_nb._protocol.keyboard import Typed
from monarch_nb._rank import keyboard
from monarch_nb._rank.blocking import what_blocks


class Reader:
    """Waits for an answer until it's let go."""

    def __init__(self) -> None:
        self.is_waiting, self.go = threading.Event(), threading.Event()

    def wait(self, reply: Any) -> None:
        self.is_waiting.set()
        self.go.wait()


def frames_of(thread: threading.Thread) -> Iterator[FrameType]:
    """Return the frames of a thread, innermost first, without those of this file, which would count as the
    user's.
    """
    frame: FrameType | None = sys._current_frames()[thread.ident or 0]
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            yield frame
        frame = frame.f_back


@pytest.mark.parametrize("source", ["input()", "getpass()"])
def test_a_question_that_nobody_has_answered(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "input", input)
    monkeypatch.setattr(getpass, "getpass", getpass.getpass)
    reader = Reader()
    answer = SimpleNamespace(ready=True, body=b"", read=lambda: Typed("yes"))
    transport: Any = SimpleNamespace(reader=reader, request=lambda *_: answer)
    keyboard.install(transport)
    code = compile(source, "a_cell_of_the_users.py", "exec")
    thread = threading.Thread(target=exec, args=(code, {"getpass": getpass.getpass}))
    thread.start()
    reader.is_waiting.wait()
    try:
        assert what_blocks(list(frames_of(thread))) == Blocked("question", source)
    finally:
        reader.go.set()
        thread.join()
