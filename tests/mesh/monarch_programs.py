"""Actors of small programs in the manner of Monarch's documentation: counters, ping pong, a crawler,
philosophers at a table, workers that are stopped or crash, data-parallel training, and reinforcement learning
in a loop of actors.
"""

from __future__ import annotations

import asyncio
import re
import urllib.parse
import urllib.request
from typing import Any

from monarch_nb.actor import Actor, Port, context, current_rank, current_size, endpoint

# --- getting started


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @endpoint
    def increment(self, by: int = 1) -> None:
        self.value += by

    @endpoint
    def get(self) -> int:
        return self.value


class Manager(Actor):
    """Drives counters that it was handed."""

    def __init__(self, counters: Any) -> None:
        self.counters = counters

    @endpoint
    def count(self, times: int) -> list[int]:
        for _ in range(times):
            self.counters.increment.broadcast()
        return list(self.counters.get.call().get().values())


# --- ping pong


class Player(Actor):
    """Plays with its opposite number, until the ball has gone over the net often enough."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hits: list[int] = []
        self.opposite: Any = None

    @endpoint
    async def meet(self, other: Any) -> None:
        self.opposite = other.slice(**current_rank())

    @endpoint
    async def hit(self, number: int, last: int, over: Port[str]) -> None:
        self.hits.append(number)
        if number == last:
            over.send(f"{self.name} {context().actor_instance.rank.rank} had the last hit")
        else:
            self.opposite.hit.broadcast(number + 1, last, over)

    @endpoint
    async def numbers(self) -> list[int]:
        return self.hits


# --- a crawler


class Frontier(Actor):
    """Knows which pages were seen, and which are to be fetched next."""

    def __init__(self, first: str, max_depth: int) -> None:
        self.max_depth = max_depth
        self.seen = {first}
        self.waiting: list[tuple[str, int]] = [(first, 0)]
        self.num_out = 0

    @endpoint
    def take(self) -> tuple[str, int] | None:
        """Return a page and its depth; None once there are none and nobody can bring more. Empty: ask
        again.
        """
        if not self.waiting:
            return ("", 0) if self.num_out else None
        self.num_out += 1
        return self.waiting.pop(0)

    @endpoint
    def bring(self, links: list[str], depth: int) -> None:
        self.num_out -= 1
        for link in links if depth < self.max_depth else []:
            if link not in self.seen:
                self.seen.add(link)
                self.waiting.append((link, depth + 1))

    @endpoint
    def pages(self) -> list[str]:
        return sorted(self.seen)


class Crawler(Actor):
    def __init__(self, frontier: Any) -> None:
        self.frontier = frontier

    @endpoint
    async def crawl(self) -> list[str]:
        fetched = []
        while (task := await self.frontier.take.call_one()) is not None:
            url, depth = task
            if not url:
                await asyncio.sleep(0.005)
                continue
            text = await asyncio.to_thread(_fetch, url)
            fetched.append(url)
            links = [urllib.parse.urljoin(url, found) for found in re.findall(r'href="([^"]+)"', text)]
            await self.frontier.bring.call_one(links, depth)
        return fetched


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


# --- philosophers at a table


class Philosopher(Actor):
    """Thinks, asks the waiter for two forks, eats, gives them back; so often, then says that it has had
    enough.
    """

    def __init__(self, num_meals: int) -> None:
        self.left_to_eat = num_meals

    @endpoint
    async def sit_down(self, waiter: Any) -> None:
        self.waiter = waiter
        self.place = current_rank().rank
        self.forks = self.place, (self.place + 1) % current_size()["seat"]
        self.waiter.ask.broadcast(self.place, self.forks)

    @endpoint
    async def eat(self) -> None:
        self.left_to_eat -= 1
        self.waiter.give_back.broadcast(self.place, self.forks, self.left_to_eat == 0)
        if self.left_to_eat:
            self.waiter.ask.broadcast(self.place, self.forks)


class Waiter(Actor):
    """Hands out forks, both or none, first come first served; tells when all have had enough."""

    def __init__(self, philosophers: Any, over: Port[int]) -> None:
        self.philosophers = philosophers
        self.over = over
        self.taken: set[int] = set()
        self.asking: list[tuple[int, tuple[int, int]]] = []
        self.num_meals = self.num_full = 0

    @endpoint
    async def ask(self, place: int, forks: tuple[int, int]) -> None:
        self.asking.append((place, forks))
        self._serve()

    @endpoint
    async def give_back(self, place: int, forks: tuple[int, int], is_full: bool) -> None:
        assert self.taken >= set(forks)
        self.taken -= set(forks)
        self.num_meals += 1
        self.num_full += is_full
        if self.num_full == len(self.philosophers):
            self.over.send(self.num_meals)
        self._serve()

    def _serve(self) -> None:
        for place, forks in list(self.asking):
            if self.taken.isdisjoint(forks):
                self.taken |= set(forks)
                self.asking.remove((place, forks))
                self.philosophers.slice(seat=place).eat.broadcast()


# --- stopped, and poisoned


class Crash(BaseException):
    """An actor doesn't survive this."""


class Worker(Actor):
    @endpoint
    async def work(self) -> int:
        return current_rank().rank

    @endpoint
    async def crash(self, reason: str) -> None:
        raise Crash(reason)


# --- data-parallel training


class Learner(Actor):
    """One rank of a DDP model."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        torch.manual_seed(0)
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    @endpoint
    def step(self) -> float:
        import torch

        generator = torch.Generator().manual_seed(current_rank().rank)
        batch = torch.randn(16, 4, generator=generator)
        loss = (self.model(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss)

    @endpoint
    def weights(self) -> list[float]:
        return [round(float(w), 6) for p in self.model.parameters() for w in p.detach().flatten()]

    @endpoint
    def leave(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


# --- reinforcement learning: policies that act, a scorer, a buffer, and a learner whose weights they read


class Replay(Actor):
    """Holds scored actions until the learner asks for some."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, int]] = []
        self.arrived = asyncio.Event()

    @endpoint
    async def put(self, action: float, score: float, version: int) -> None:
        self.rows.append((action, score, version))

    @endpoint
    async def sample(self, num: int) -> list[tuple[float, float, int]]:
        found, self.rows = self.rows[-num:], []
        return found


class Scorer(Actor):
    """Likes actions near 3."""

    def __init__(self, replay: Any) -> None:
        self.replay = replay

    @endpoint
    async def score(self, actions: list[float], version: int) -> None:
        for action in actions:
            await self.replay.put.call_one(action, -((action - 3.0) ** 2), version)


class Policy(Actor):
    """Acts with the weights that it has read from the learner's memory."""

    def __init__(self, weights: Any, scorer: Any) -> None:
        import torch

        self.remote, self.scorer = weights, scorer
        self.mean = torch.zeros(1)
        self.random = torch.Generator().manual_seed(current_rank().rank)
        self.version = 0

    @endpoint
    async def update(self, version: int) -> float:
        await self.remote.read_into(self.mean)
        self.version = version
        return float(self.mean)

    @endpoint
    async def act(self, num: int) -> None:
        import torch

        actions = (self.mean + torch.randn(num, generator=self.random)).tolist()
        await self.scorer.score.call_one(actions, self.version)


class PolicyLearner(Actor):
    """Moves the mean towards actions that scored better than the rest of their group."""

    def __init__(self, replay: Any) -> None:
        import torch

        self.replay = replay
        self.mean = torch.zeros(1)
        self.version = 0

    @endpoint
    async def weights(self) -> Any:
        from monarch_nb.rdma import RDMABuffer

        return RDMABuffer(self.mean)

    @endpoint
    async def step(self, num: int) -> int:
        import torch

        rows = await self.replay.sample.call_one(num)
        actions, scores = (torch.tensor(column) for column in list(zip(*rows, strict=True))[:2])
        advantage = (scores - scores.mean()) / (scores.std() + 1e-6)
        self.mean += 0.5 * (advantage * (actions - self.mean)).mean()
        self.version += 1
        return self.version
