"""A host comes over to new keys: whatever order things happen in, both sides get each message once, in order.

The network between the two is invented: each connection is a queue in each direction.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb._host.controller.switch_state import Due, Heard, SwitchState

HOST = 1


class Network:
    """A controller and a host that talk while the mesh is given new keys, several times."""

    def __init__(self) -> None:
        self.state = SwitchState()
        self.up: defaultdict[bytes, deque[Any]] = defaultdict(deque)
        self.down: defaultdict[bytes, deque[Any]] = defaultdict(deque)
        self.route = self.now = b"0"
        self.old = self.next = b""
        self.num_dialled = 0
        self.sent_up: list[int] = []
        self.sent_down: list[int] = []
        self.got_up: list[int] = []
        self.got_down: list[int] = []

    # --- what both sides do by themselves

    def host_sends(self) -> None:
        self.sent_up.append(len(self.sent_up))
        self.up[self.now].append(self.sent_up[-1])

    def controller_sends(self) -> None:
        self.sent_down.append(len(self.sent_down))
        self.down[self.route].append(self.sent_down[-1])

    def new_keys(self) -> None:
        if self.state.left:
            return
        self.num_dialled += 1
        self.state.bring_over({HOST: (0, self.route)})
        self.tell()

    def tell(self) -> None:
        for _, due, identity in self.state.due():
            self.down[identity].append((due, str(self.num_dialled).encode()))

    # --- what arrives

    def controller_hears(self, which: str) -> None:
        waiting = [identity for identity, queue in self.up.items() if queue]
        if not waiting:
            return
        identity = waiting[0 if which == "first" else -1]
        self.hear(identity, [self.up[identity].popleft()])

    def hear(self, identity: bytes, parts: Sequence[Any]) -> None:
        heard = self.state.hears(HOST, 0, identity, parts)
        if heard is Heard.DROP:
            assert parts == ["last word"]
            return
        if heard is Heard.DIALLED:
            self.tell()
        self.route = self.state.route(HOST, 0, identity)
        if heard is Heard.TAKE:
            self.take(parts)

    def take(self, parts: Sequence[Any]) -> None:
        if parts == ["last word"]:
            for kept in self.state.last_word(HOST):
                self.take(kept)
        elif parts != ["hello"]:
            self.got_up += parts

    def host_hears(self, which: str) -> None:
        queue = self.down[self.old if which == "old" else self.now]
        if not queue:
            return
        message = queue.popleft()
        if isinstance(message, int):
            self.got_down.append(message)
        elif message[0] is Due.DIAL:
            self.dial(message[1])
        else:
            self.switch()

    def dial(self, identity: bytes) -> None:
        if identity not in (self.next, self.now):
            self.next = identity
            self.down.pop(self.old, None)
            self.old = b""  # closed, if it wasn't already
            self.up[identity].append("hello")

    def switch(self) -> None:
        if self.next:
            self.old, self.now, self.next = self.now, self.next, b""
        if self.old:
            self.up[self.old].append("last word")

    # --- at last

    def settle(self) -> None:
        """Have all arrive that is on its way, and compare."""
        while any([*self.up.values(), *self.down.values()]):
            for which in ("old", "now"):
                self.host_hears(which)
            for which in ("last", "first"):
                self.controller_hears(which)
            if self.state.left and not any([*self.up.values(), *self.down.values()]):
                self.tell()
        assert self.got_up == self.sent_up
        assert self.got_down == self.sent_down
        assert not self.state.left and self.route == self.now


ACTIONS: dict[str, Callable[[Network], None]] = {
    "host sends": Network.host_sends,
    "controller sends": Network.controller_sends,
    "new keys": Network.new_keys,
    "tell again": Network.tell,
    "controller hears what waits first": lambda network: network.controller_hears("first"),
    "controller hears what waits last": lambda network: network.controller_hears("last"),
    "host hears the old connection": lambda network: network.host_hears("old"),
    "host hears the new connection": lambda network: network.host_hears("now"),
}


@settings(max_examples=400)
@given(st.lists(st.sampled_from(sorted(ACTIONS)), min_size=40, max_size=120))
def test_each_message_arrives_once_and_in_order(actions: list[str]) -> None:
    network = Network()
    network.new_keys()
    for action in actions:
        ACTIONS[action](network)
    network.settle()


def test_another_process_in_the_place_of_one_that_was_to_come_over_is_heard() -> None:
    state = SwitchState()
    state.bring_over({HOST: (0, b"h1.0")})
    assert state.hears(HOST, 1, b"h1.1", []) is Heard.TAKE
    assert state.route(HOST, 1, b"h1.1") == b"h1.1"
    state.forget(HOST)
    assert state.left == [] and state.last_word(HOST) == []


def test_an_expected_host_joins_before_it_comes_over() -> None:
    state = SwitchState()
    state.bring_over({HOST: (0, b"")})
    assert state.due() == []
    assert state.hears(HOST, 0, b"first", []) is Heard.TAKE
    assert state.due() == [(HOST, Due.DIAL, b"first")]


def test_a_third_connection_is_not_heard() -> None:
    state = SwitchState()
    state.bring_over({HOST: (0, b"old")})
    assert state.hears(HOST, 0, b"new", []) is Heard.DIALLED
    assert state.hears(HOST, 0, b"other", []) is Heard.DROP
    assert state.route(HOST, 0, b"other") == b"new"
