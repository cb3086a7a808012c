"""Programs as Monarch's documentation has them, in our own words: they run as they would there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from monarch_programs import (
    Counter,
    Crawler,
    Frontier,
    Learner,
    Manager,
    Philosopher,
    Player,
    Policy,
    PolicyLearner,
    Replay,
    Scorer,
    Waiter,
    Worker,
)
from waiting import wait_until

from monarch_nb.actor import Channel, MeshFailure, ProcMesh, SupervisionError, this_host, this_proc
from monarch_nb.spmd import setup_torch_elastic_env


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    with this_host().spawn_procs({"gpus": 3}) as mesh:
        yield mesh


def test_getting_started_with_counters(procs: ProcMesh) -> None:
    counters = procs.spawn("counters", Counter, start=10)
    counters.increment.broadcast()
    counters.slice(gpus=0).increment.call_one(by=5).get()
    assert list(counters.get.call().get().values()) == [16, 11, 11]
    assert counters.get.choose().get() in (16, 11)
    assert sorted(future.get() for future in counters.get.stream()) == [11, 11, 16]
    manager = this_proc().spawn("manager", Manager, counters)
    assert manager.count.call_one(2).get() == [18, 13, 13]
    counters.stop().get()
    manager.stop().get()


def test_ping_pong_between_two_meshes(procs: ProcMesh) -> None:
    with this_host().spawn_procs({"gpus": 3}) as others:
        ping, pong = procs.spawn("ping", Player, "ping"), others.spawn("pong", Player, "pong")
        over, heard = Channel.open()

        async def play() -> None:
            await asyncio.gather(ping.meet.call(pong), pong.meet.call(ping))
            await ping.hit.call(0, 9, over)

        asyncio.run(play())
        assert sorted(heard.recv().get(60) for _ in range(3)) == [
            f"pong {i} had the last hit" for i in range(3)
        ]
        assert list(ping.numbers.call().get().values()) == [[0, 2, 4, 6, 8]] * 3
        assert list(pong.numbers.call().get().values()) == [[1, 3, 5, 7, 9]] * 3
        ping.stop().get()


SITE = {"/": ["/a", "/b"], "/a": ["/", "/c"], "/b": ["/c", "/d"], "/c": ["/e"], "/d": [], "/e": ["/deep"]}


class _Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        text = "".join(f'<a href="{link}">there</a>' for link in SITE[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def test_a_crawler_fetches_each_page_once(procs: ProcMesh) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        root = f"http://127.0.0.1:{server.server_port}"
        frontier = procs.slice(gpus=0).spawn("frontier", Frontier, f"{root}/", 3)
        crawlers = procs.spawn("crawlers", Crawler, frontier)
        fetched = [page for each in crawlers.crawl.call().get().values() for page in each]
        assert sorted(fetched) == [f"{root}{path}" for path in sorted(SITE)]
        assert frontier.pages.call_one().get() == sorted(fetched)
        crawlers.stop().get()
        frontier.stop().get()
    finally:
        server.shutdown()
        server.server_close()


def test_philosophers_dine_without_starving(procs: ProcMesh) -> None:
    over, heard = Channel.open()
    philosophers = procs.rename(gpus="seat").spawn("philosophers", Philosopher, 4)
    waiter = this_proc().spawn("waiter", Waiter, philosophers, over)
    philosophers.sit_down.broadcast(waiter)
    assert heard.recv().get(60) == 3 * 4
    philosophers.stop().get()
    waiter.stop().get()


def test_a_stopped_mesh_says_why(procs: ProcMesh, unhandled: list[MeshFailure]) -> None:
    workers = procs.spawn("workers", Worker)
    assert list(workers.work.call().get().values()) == [0, 1, 2]
    workers.stop("the example is over").get()
    with pytest.raises(SupervisionError, match="the example is over"):
        workers.work.call().get()
    assert not unhandled


def test_a_poisoned_mesh_works_where_it_is_healthy(procs: ProcMesh, unhandled: list[MeshFailure]) -> None:
    workers = procs.spawn("workers", Worker)
    with pytest.raises(SupervisionError, match="GPU memory is corrupt"):
        workers.slice(gpus=0).crash.call_one("GPU memory is corrupt").get()
    failure = wait_until(lambda: unhandled, "the hook")[0]
    assert "GPU memory is corrupt" in failure.report()
    assert [workers.slice(gpus=i).work.call_one().get() for i in (1, 2)] == [0, 0]
    with pytest.raises(SupervisionError, match="GPU memory is corrupt"):
        workers.work.call().get()
    assert list(procs.spawn("others", Worker).work.call().get().values()) == [0, 1, 2]


def test_a_ddp_model_learns_the_same_everywhere() -> None:
    with this_host().spawn_procs({"gpus": 2}) as procs:
        setup_torch_elastic_env(procs)
        learners = procs.spawn("learners", Learner)
        losses = [learners.step.call().get().reduce("mean") for _ in range(10)]
        assert losses[-1] < losses[0] / 2
        mine, other = learners.weights.call().get().values()
        assert mine == other
        learners.leave.call().get()


def test_policies_learn_in_a_loop_of_actors(procs: ProcMesh) -> None:
    first = procs.slice(gpus=0)
    replay = first.spawn("replay", Replay)
    scorer = first.spawn("scorer", Scorer, replay)
    learner = procs.slice(gpus=1).spawn("learner", PolicyLearner, replay)

    async def train() -> list[float]:
        policies = procs.spawn("policies", Policy, await learner.weights.call_one(), scorer)
        means, version = [], 0
        for _ in range(12):
            await policies.act.call(8)
            version = await learner.step.call_one(24)
            read = list((await policies.update.call(version)).values())
            assert len(set(read)) == 1  # all have read the same memory
            means.append(read[0])
        assert version == 12
        policies.stop().get()
        return means

    means = asyncio.run(train())
    assert abs(means[-1] - 3.0) < abs(means[0] - 3.0)
    assert abs(means[-1] - 3.0) < 1.5
