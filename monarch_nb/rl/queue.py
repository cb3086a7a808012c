"""A queue of rollouts from generators to trainers: each is used once."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from monarch_nb.actor import Actor, concurrent_endpoint, endpoint
from monarch_nb.exceptions import MeshError, MeshUsageError


class QueueClosed(MeshError):
    """The error of a queue that is closed: nothing more can be taken or put."""


class Rollout(NamedTuple):
    """A rollout that a generator has made.

    Attributes:
        value: anything that can be sent.
        version: version of the weights that it was made with.
    """

    value: Any
    version: int = 0


@dataclass(frozen=True)
class QueueState:
    """The state of a queue or a buffer.

    Attributes:
        num_held: number of rollouts in it.
        num_put: number of rollouts ever put.
        num_taken: number of rollouts ever taken.
        num_stale: number of rollouts dropped because their version was too old.
        num_held_back: number of waiting producers.
        num_waiting: number of waiting consumers.
        is_closed: whether it is closed to producers.
    """

    num_held: int
    num_put: int
    num_taken: int
    num_stale: int
    num_held_back: int
    num_waiting: int
    is_closed: bool


class RolloutQueue(Actor):
    """A queue between meshes: `put` waits while it is full, `get` while it holds fewer than requested.

    A producer that dies while it waits leaves its rollout behind; what a consumer was handed before it died
    is lost.

    Args:
        capacity: how many rollouts it holds at most.
        max_lag: rollouts whose version is older than the consumer's by more are dropped; None: never.

    Example:
        >>> queue = mesh.slice(gpus=0).spawn("rollouts", RolloutQueue, 32, max_lag=2)   # doctest: +SKIP
        >>> [rollout.value for rollout in queue.get.call_one(8, version=5).get()]       # doctest: +SKIP
    """

    def __init__(self, capacity: int, *, max_lag: int | None = None) -> None:
        check_count("RolloutQueue", "capacity", capacity)
        if max_lag is not None:
            check_count("RolloutQueue", "max_lag", max_lag, least=0)
        self._capacity, self._max_lag = capacity, max_lag
        self._held: deque[Rollout] = deque()
        self._changed = asyncio.Condition()
        self._num_put = self._num_taken = self._num_stale = 0
        self._num_held_back = self._num_waiting = 0
        self._is_closed = False

    @concurrent_endpoint
    async def put(self, value: Any, version: int = 0) -> int:
        """Put a rollout into the queue, waiting until there is room; return the number of rollouts in the
        queue.

        Raises:
            QueueClosed: if the queue is closed, even while this waits.
        """
        async with self._changed:
            self._num_held_back += 1
            try:
                await self._changed.wait_for(lambda: self._is_closed or len(self._held) < self._capacity)
            finally:
                self._num_held_back -= 1
            if self._is_closed:
                raise QueueClosed("put: the queue is closed")
            self._held.append(Rollout(value, version))
            self._num_put += 1
            self._changed.notify_all()
            return len(self._held)

    @concurrent_endpoint
    async def get(self, num: int = 1, version: int | None = None) -> list[Rollout]:
        """Take `num` rollouts, the oldest first, waiting until the queue holds as many; of a closed queue,
        return the rest, which may be fewer.

        Args:
            num: the number of rollouts.
            version: the version of the consumer's weights; rollouts that are older by more than `max_lag`
                versions are dropped.

        Raises:
            QueueClosed: if the queue is closed and empty.
            MeshUsageError: if `num` exceeds the capacity.
        """
        check_count("get", "num", num)
        if num > self._capacity:
            raise MeshUsageError(
                f"get: {num} rollouts were asked for, and the queue holds at most {self._capacity}"
            )
        async with self._changed:
            self._num_waiting += 1
            try:
                await self._changed.wait_for(lambda: self._is_closed or self._num_fresh(version) >= num)
            finally:
                self._num_waiting -= 1
            self._num_fresh(version)
            taken = [self._held.popleft() for _ in range(min(num, len(self._held)))]
            if not taken:
                raise QueueClosed("get: the queue is closed, and empty")
            self._num_taken += len(taken)
            self._changed.notify_all()
            return taken

    def _num_fresh(self, version: int | None) -> int:
        """Drop rollouts that are too old; return the number of those left."""
        if version is not None and self._max_lag is not None:
            fresh = [each for each in self._held if each.version >= version - self._max_lag]
            self._num_stale += len(self._held) - len(fresh)
            if len(fresh) < len(self._held):
                self._held = deque(fresh)
                self._changed.notify_all()
        return len(self._held)

    @concurrent_endpoint
    async def close(self) -> None:
        """Close the queue: no more rollouts can be put, and waiting calls are woken."""
        async with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    @endpoint
    def state(self) -> QueueState:
        """Return the state of the queue: numbers of rollouts and of waiting calls."""
        return QueueState(
            len(self._held), self._num_put, self._num_taken, self._num_stale, self._num_held_back,
            self._num_waiting, self._is_closed,
        )  # fmt: skip


def check_count(who: str, name: str, value: object, *, least: int = 1) -> None:
    """Raise an error if `value` isn't a whole number of at least `least`.

    Raises:
        MeshUsageError: if it isn't; the error names the argument.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise MeshUsageError(f"{who}: {name} is a whole number of at least {least}, not {value!r}")
