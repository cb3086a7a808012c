"""Actors with breakpoints."""

from __future__ import annotations

import asyncio
import pdb

from monarch_nb.actor import Actor, concurrent_endpoint, current_rank, endpoint


class Debugged(Actor):
    def __init__(self) -> None:
        self.total = 0

    @endpoint
    def add(self, x: int) -> int:
        doubled = x * 2 + current_rank().rank
        breakpoint()
        self.total += doubled
        return self.total

    @endpoint
    def add_if(self, x: int) -> int:
        if x > 2:
            pdb.set_trace()
        self.total += x
        return self.total

    @endpoint
    def fail(self, divisor: int) -> float:
        inner = divisor * 1
        return 1 / inner


class DebuggedAsync(Actor):
    @endpoint
    async def wait(self, x: int) -> int:
        y = x + 1
        breakpoint()
        return y

    @concurrent_endpoint
    async def in_thread(self, x: int) -> int:
        return await asyncio.to_thread(_work, x)


def _work(x: int) -> int:
    y = x * 10
    breakpoint()
    return y
