"""Answers of several ranks that come in one message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from monarch_nb._transport.transport import Transport
from monarch_nb._wire import message as wire


class Waiters:
    """What a stream leaves with the transport: each answer has a waiter of its own."""

    def deliver(self, slot: int, body: Any) -> str:
        return f"waiter of {slot}"


def test_all_that_wait_for_one_are_woken() -> None:
    woken: list[str] = []
    printed: list[tuple[int, int]] = []
    transport = SimpleNamespace(
        _pending={7: Waiters()},
        reader=SimpleNamespace(notify=woken.append),
        on_printed=lambda proc, mark: printed.append((proc, mark)),
    )
    answers = [wire.Answer(0, (0, 1), b"same"), wire.Answer(0, (2,), b"other")]
    frame = wire.pack_combined(1, 2, 7, answers, [(5, 1), (6, 4)])
    by_caller = Transport._take_combined(transport, wire.unpack(frame))  # type: ignore[arg-type]
    assert [*woken, by_caller] == ["waiter of 0", "waiter of 1", "waiter of 2"]
    assert printed == [(5, 1), (6, 4)], "their output is waited for"
