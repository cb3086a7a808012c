"""Who handles which message of a process, and what becomes of those that nobody handles, or that aren't
what they say.
"""

from __future__ import annotations

import pytest

from monarch_nb._protocol.base import Event, Malformed, Request, encode
from monarch_nb._protocol.registry import NOBODY, Handlers, Sender, handles


class Open(Request[int], frozen=True):
    wide: int


class KnockedTwice(Event, frozen=True):
    """Somebody is there."""


class Door:
    @handles(Open)
    def do_open(self, request: Open, sender: Sender) -> int:
        return request.wide + sender.ref

    @handles(KnockedTwice)
    def on_knocked_twice(self, event: KnockedTwice, sender: Sender) -> None:
        self.heard = sender.proc


class Window:
    @handles(Open)
    def do_it(self, request: Open, sender: Sender) -> int:
        return 0


def handlers_of(*services: object) -> Handlers:
    found = Handlers()
    for service in services:
        found.add(service)
    return found


def test_a_service_handles_what_its_methods_are_marked_for() -> None:
    door = Door()
    handlers = handlers_of(door)
    opens, knocked = handlers.find("open"), handlers.find("knocked_twice")
    assert opens is not None and knocked is not None
    assert opens(encode(Open(3)), Sender(7, 2)) == 5
    assert handlers.handle(Open(4)) == 4
    knocked(b"", Sender(7))
    assert door.heard == 7


def test_what_nobody_handles_is_found_nowhere() -> None:
    assert handlers_of(Door()).find("shut") is None


def test_two_cant_handle_the_same() -> None:
    with pytest.raises(ValueError, match=r"two handle 'open': .*Door.do_open.* and Window.do_it"):
        handlers_of(Door(), Window())


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "required field `wide`"),
        (b"no pickle", "not a 'open'"),
        (encode({"wide": "x"}), r"`int`, got `str` - at `\$.wide`"),
        (encode({"wide": 1, "high": 2}), "`high`"),
    ],
)
def test_what_isnt_of_the_type_is_refused_by_name(payload: bytes, says: str) -> None:
    opens = handlers_of(Door()).find("open")
    assert opens is not None
    with pytest.raises(Malformed, match=says):
        opens(payload, NOBODY)
