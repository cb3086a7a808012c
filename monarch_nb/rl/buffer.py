"""A replay buffer: rollouts that may be used several times, or never."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

from monarch_nb.actor import Actor, concurrent_endpoint, endpoint
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.rl.queue import QueueState, Rollout, check_count


class ReplayBuffer(Actor):
    """A buffer that holds the newest rollouts, and returns random ones, without replacement within one
    sample.

    Args:
        capacity: maximum number of rollouts; beyond that, the oldest is dropped.
        min_size: number of rollouts that `sample` waits for.
        samples_per_add: how often a rollout is to be sampled on average: `add` waits while consumers are
            behind by more than `min_size` rollouts. None: producers never wait.
        seed: seed of the random choice.

    Example:
        >>> buffer = mesh.slice(gpus=0).spawn("replay", ReplayBuffer, 10_000, min_size=256)  # doctest: +SKIP
        >>> buffer.add.call_one(episode, version).get()                                      # doctest: +SKIP
        >>> batch = buffer.sample.call_one(64).get()                                         # doctest: +SKIP
    """

    def __init__(
        self,
        capacity: int,
        *,
        min_size: int = 1,
        samples_per_add: float | None = None,
        seed: int | None = None,
    ) -> None:
        check_count("ReplayBuffer", "capacity", capacity)
        check_count("ReplayBuffer", "min_size", min_size)
        if min_size > capacity:
            raise MeshUsageError(f"ReplayBuffer: min_size is {min_size}, above the capacity of {capacity}")
        if samples_per_add is not None and not samples_per_add > 0:
            raise MeshUsageError(f"ReplayBuffer: samples_per_add must be above 0, not {samples_per_add!r}")
        self._min_size, self._samples_per_add = min_size, samples_per_add
        self._held: deque[Rollout] = deque(maxlen=capacity)
        self._random = random.Random(seed)
        self._changed = asyncio.Condition()
        self._num_added = self._num_sampled = self._num_held_back = self._num_waiting = 0

    @concurrent_endpoint
    async def add(self, value: Any, version: int = 0) -> int:
        """Add a rollout, waiting until consumers have caught up; return the number of rollouts in the
        buffer.
        """
        async with self._changed:
            self._num_held_back += 1
            try:
                await self._changed.wait_for(self._may_add)
            finally:
                self._num_held_back -= 1
            self._held.append(Rollout(value, version))
            self._num_added += 1
            self._changed.notify_all()
            return len(self._held)

    def _may_add(self) -> bool:
        if self._samples_per_add is None:
            return True
        return self._num_added < self._min_size + self._num_sampled / self._samples_per_add

    @concurrent_endpoint
    async def sample(self, num: int) -> list[Rollout]:
        """Return random rollouts, waiting until the buffer holds enough.

        Raises:
            MeshUsageError: if `num` exceeds the capacity.
        """
        check_count("sample", "num", num)
        if num > (self._held.maxlen or num):
            raise MeshUsageError(
                f"sample: {num} rollouts were asked for; the buffer holds at most {self._held.maxlen}"
            )
        async with self._changed:
            self._num_waiting += 1
            try:
                await self._changed.wait_for(lambda: len(self._held) >= max(num, self._min_size))
            finally:
                self._num_waiting -= 1
            self._num_sampled += num
            self._changed.notify_all()
            return self._random.sample(self._held, num)

    @endpoint
    def state(self) -> QueueState:
        """Return the state of the buffer: numbers of rollouts and of waiting calls."""
        return QueueState(
            len(self._held), self._num_added, self._num_sampled, 0, self._num_held_back, self._num_waiting,
            is_closed=False,
        )  # fmt: skip
