"""Broadcasts a pack from the notebook's machine to all agents. An agent that has verified it feeds others,
one at a time.

A host that fails is left out, and the others go on. Who gets a pack that isn't right from another host gets
it from the notebook's machine; a host from which that has happened twice feeds nobody any more, and is named.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

STRIKES = 2
NOTEBOOK_FEEDS = 2
"""Number of agents that read from the notebook's machine at once."""

Host = TypeVar("Host", bound=Hashable)


@dataclass
class Trust(Generic[Host]):
    """The record of hosts' failures, over all packs. Changed under its lock.

    Attributes:
        lost: why a host was left out, by host.
        strikes: how often a host's content was wrong.
    """

    lost: dict[Host, str] = field(default_factory=dict)
    strikes: dict[Host, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def lose(self, host: Host, reason: str) -> None:
        """Leave a host out."""
        with self.lock:
            self.lost.setdefault(host, reason)

    def strike(self, host: Host) -> None:
        """Count a strike against a host from which another one couldn't get the right content."""
        with self.lock:
            self.strikes[host] = self.strikes.get(host, 0) + 1

    def may_feed(self, host: Host) -> bool:
        """Say whether others may read from a host."""
        return host not in self.lost and self.strikes.get(host, 0) < STRIKES

    def corrupting(self) -> list[Host]:
        """Return hosts that feed nobody any more."""
        return [host for host, num in self.strikes.items() if num >= STRIKES]


class Refused(Exception):
    """The error of a pack on the notebook's machine that is wrong: a file has changed since it was
    scanned.
    """

    def __init__(self, wrong: tuple[str, ...]) -> None:
        super().__init__(wrong)
        self.wrong = wrong


Outcome = tuple[tuple[str, ...], str]
"""Contents that were wrong, and why nothing could be read."""


def broadcast(
    hosts: Iterable[Host], trust: Trust[Host], copy: Callable[[Host | None, Host], Outcome]
) -> None:
    """Bring one pack to hosts.

    Args:
        copy: has a host (the second) fetch it from another, or from the notebook's machine (None); raises if
            the host is gone.

    Raises:
        Refused: if what the notebook's machine has isn't right.
    """
    _Spread(list(hosts), trust, copy).run()


class _Spread(Generic[Host]):
    def __init__(
        self, hosts: list[Host], trust: Trust[Host], copy: Callable[[Host | None, Host], Outcome]
    ) -> None:
        self._waiting = [host for host in hosts if host not in trust.lost]
        self._only_controller: set[Host] = set()
        self._trust = trust
        self._copy = copy
        self._free: list[Host | None] = [None] * NOTEBOOK_FEEDS
        self._num_running = 0
        self._refused: Refused | None = None
        self._changed = threading.Condition()

    def run(self) -> None:
        if len(self._waiting) == 1:
            self._feed(None, self._waiting.pop())
        elif self._waiting:
            with ThreadPoolExecutor(len(self._waiting), "monarch_nb-sync-spread") as pool:
                self._schedule(pool)
        if self._refused is not None:
            raise self._refused

    def _schedule(self, pool: ThreadPoolExecutor) -> None:
        with self._changed:
            while (self._waiting or self._num_running) and self._refused is None:
                pair = self._next_pair()
                if pair is None:
                    self._changed.wait()
                else:
                    self._num_running += 1
                    pool.submit(self._step, *pair)

    def _next_pair(self) -> tuple[Host | None, Host] | None:
        for target in self._waiting:
            near = [
                h
                for h in self._free
                if h is None or (target not in self._only_controller and self._trust.may_feed(h))
            ]
            if near:
                holder = max(
                    near, key=lambda h: h is not None
                )  # the notebook's machine last, since all hosts share its link
                self._free.remove(holder)
                self._waiting.remove(target)
                return holder, target
        return None

    def _step(self, holder: Host | None, target: Host) -> None:
        try:
            self._feed(holder, target)
        finally:
            with self._changed:
                self._free.append(holder)
                self._num_running -= 1
                self._changed.notify()

    def _feed(self, holder: Host | None, target: Host) -> None:
        try:
            wrong, problem = self._copy(holder, target)
        except Exception as error:
            self._trust.lose(target, f"{type(error).__name__}: {error}".splitlines()[0])
            return
        if not wrong and not problem:
            with self._changed:
                self._free.append(target)
        elif holder is not None:
            self._trust.strike(holder)
            with self._changed:
                self._only_controller.add(target)
                self._waiting.append(target)
        elif wrong:
            self._refused = Refused(wrong)
        else:
            self._trust.lose(target, problem)
