"""A link that outlives its connections, in any order of events: every message arrives once, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._wire.resuming import NOTE, Resumable


class Side:
    """One end, and what is on its way to the other one by the present connection."""

    def __init__(self) -> None:
        self.link = Resumable()
        self.got: list[bytes] = []
        self.num_sent = 0
        self.out: list[list[bytes]] = []

    def send(self) -> None:
        self.num_sent += 1
        frames = self.link.send([b"%d" % self.num_sent])
        if frames is not None:
            self.out.append(frames)

    def note(self) -> None:
        self.out.append([NOTE, b"%d" % self.link.num_taken])

    def take(self, frames: list[bytes]) -> None:
        if frames[0] == NOTE:
            num = int(frames[1])
            if self.link.is_open:
                self.link.confirmed(num)
            else:
                self.out += self.link.resumed(num)
        elif self.link.takes(frames[0]):
            self.got.append(frames[1])


@given(
    st.lists(
        st.sampled_from(["a sends", "b sends", "to a", "to b", "a notes", "b notes", "cut"]), max_size=80
    )
)
def test_everything_arrives_once_and_in_order_whatever_is_lost(events: list[str]) -> None:
    a, b = Side(), Side()

    def deliver(source: Side, target: Side) -> None:
        if source.out:
            target.take(source.out.pop(0))

    def cut() -> None:
        for side in (a, b):
            side.out.clear()
            side.link.broken()
        a.note()  # whoever dials says what it has; the other side answers
        b.note()

    cut()
    for event in [*events, "cut"]:
        match event:
            case "a sends":
                a.send()
            case "b sends":
                b.send()
            case "to a":
                deliver(b, a)
            case "to b":
                deliver(a, b)
            case "a notes":
                a.note()
            case "b notes":
                b.note()
            case "cut":
                cut()
    while a.out or b.out:
        deliver(a, b)
        deliver(b, a)
    assert b.got == [b"%d" % n for n in range(1, a.num_sent + 1)]
    assert a.got == [b"%d" % n for n in range(1, b.num_sent + 1)]
    a.note()
    b.note()
    while a.out or b.out:
        deliver(a, b)
        deliver(b, a)
    assert a.link.kept_bytes == b.link.kept_bytes == 0, "what has arrived isn't kept"


def test_a_number_that_is_none_is_refused() -> None:
    for prefix in (b"x", b"123456789", b"?"):
        with pytest.raises(ValueError, match="a number of"):
            Resumable().takes(prefix)


def test_a_confirmation_of_what_was_never_sent_forgets_no_more_than_there_is() -> None:
    link = Resumable()
    link.send([b"x"])
    link.confirmed(1 << 60)
    link.confirmed(0)
    assert link.kept_bytes == 0 and link.resumed(0) == []
