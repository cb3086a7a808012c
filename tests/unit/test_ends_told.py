"""Other hosts are told of ends of ranks together, and before whatever else is sent to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from monarch_nb._host.controller.controller import ControllerProcess
from monarch_nb._host.controller.hosts import HostService
from monarch_nb._protocol.base import Event
from monarch_nb._protocol.events import RanksEnded, RanksRevived
from monarch_nb._protocol.exits import RankExit
from monarch_nb._wire import address


class Parts:
    """Stands for a controller with two other hosts."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Event]] = []
        self.timers: list[Callable[[], None]] = []
        self.loop = SimpleNamespace(call_shortly=self.timers.append)
        self.hosts = HostService(self)  # type: ignore[arg-type]
        link: Any = self.hosts.link
        link.remote_hosts = lambda: [SimpleNamespace(index=1), SimpleNamespace(index=2)]
        link.send = lambda host, frames: self.sent.append((host, frames[0]))

    def event(self, dst: int, event: Event) -> None:
        self.send_remote(address.host_of(dst), [event])

    def event_to_all(self, procs: Sequence[int], event: Event) -> None:
        for proc in procs:
            self.event(proc, event)

    def send_remote(self, host: int, frames: list[Any]) -> None:
        ControllerProcess.send_remote(self, host, frames)  # type: ignore[arg-type]


def end(proc: int) -> RankExit:
    return RankExit(proc, "workers", proc, "gpu-1", 4711)


def test_ends_of_many_ranks_are_one_message_to_each_host() -> None:
    parts = Parts()
    for proc in range(100):
        parts.hosts.tell_end(end(proc))
    assert not parts.sent and len(parts.timers) == 1
    parts.timers.pop()()
    told = RanksEnded(tuple(map(end, range(100))))
    assert parts.sent == [(1, told), (2, told)]
    parts.hosts.tell_end(end(100))
    assert len(parts.timers) == 1, "the next one gets a moment of its own"


def test_what_is_sent_after_an_end_comes_after_it() -> None:
    parts = Parts()
    parts.hosts.tell_end(end(5))
    parts.event(address.host_proc(2), RanksRevived((5,)))
    told = RanksEnded((end(5),))
    assert parts.sent == [(1, told), (2, told), (2, RanksRevived((5,)))]
    parts.timers.pop()()
    assert len(parts.sent) == 3, "nothing is told twice"
