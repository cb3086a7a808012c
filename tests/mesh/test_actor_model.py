"""The programming model on one host and on two."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sample_actors import Caller, Counter, Holder, Mixed, Where
from two_by_two import spawn_two_by_two

from monarch_nb.actor import (
    Accumulator,
    Actor,
    Channel,
    Future,
    ProcMesh,
    RankTimeout,
    ValueMesh,
    as_endpoint,
    endpoint,
    get_or_spawn_controller,
    send,
)
from monarch_nb.exceptions import ActorError, CannotPickle, SupervisionError

T = 30


def test_call_gives_a_value_for_each_point(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter, 10)
    values = counter.increment.call(5).get(T)
    assert isinstance(values, ValueMesh)
    assert values.sizes == {"hosts": 2, "gpus": 2}
    assert [(dict(point), value) for point, value in values] == [
        ({"hosts": h, "gpus": g}, 15) for h in range(2) for g in range(2)
    ]


def test_slices_reach_their_ranks_only(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    counter.slice(hosts=1).increment.call().get(T)
    assert list(counter.get.call().get(T).values()) == [0, 0, 1, 1]
    assert counter.slice(hosts=1, gpus=0).get.call_one().get(T) == 1
    assert counter.flatten("rank").slice(rank=3).get.call_one().get(T) == 1


def test_rank_is_the_position_in_the_slice(procs: ProcMesh) -> None:
    where = procs.spawn("where", Where)
    whole = list(where.rank.call().get(T).values())
    assert [v[0] for v in whole] == [0, 1, 2, 3]
    assert whole[3] == (3, {"hosts": 1, "gpus": 1}, {"hosts": 2, "gpus": 2}, "where")
    part = list(where.slice(gpus=1).rank.call().get(T).values())
    assert part == [(i, {"hosts": i}, {"hosts": 2}, "where") for i in range(2)]
    assert where.slice(hosts=1, gpus=1).own_rank.call_one().get(T) == {"hosts": 1, "gpus": 1}


def test_actors_have_their_own_threads(procs: ProcMesh) -> None:
    one, two = procs.spawn("one", Where), procs.spawn("two", Where)
    names = {m.slice(hosts=0, gpus=0).thread.call_one().get(T) for m in (one, two)}
    assert names == {("actor-one", False), ("actor-two", False)}
    assert one.pid.call().get(T) == two.pid.call().get(T)


def test_call_one_wants_one(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    with pytest.raises(ValueError, match=r"counter.get.call_one needs a mesh of one actor; this one has 4"):
        counter.get.call_one()


def test_choose_takes_the_least_loaded(procs: ProcMesh, tmp_path: Path) -> None:
    holder = procs.spawn("holder", Holder)
    gate = tmp_path / "gate"
    futures = [
        holder.hold.choose(str(gate)) for _ in range(8)
    ]  # none is answered before the last has been sent
    gate.touch()
    for future in futures:
        future.get(T)
    assert list(holder.count.call().get(T).values()) == [2, 2, 2, 2]


def test_stream_yields_each_answer_as_it_comes(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter, 1)
    stream = counter.increment.stream()
    assert [f.get(T) for f in stream] == [2, 2, 2, 2]
    found = dict(counter.get.stream().items())
    assert sorted(p.rank for p in found) == [0, 1, 2, 3]


def test_broadcast_then_call_keeps_order(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    for i in range(100):
        if i % 3 == 0:
            counter.note.call(i)
        elif i % 3 == 1:
            counter.note.broadcast(i)
        else:
            counter.note.stream(i)
    assert all(seen == list(range(100)) for seen in counter.noted.call().get(T).values())


def test_scatter_gives_each_rank_its_own(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    assert list(counter.increment.scatter([1, 2, 3, 4]).get(T).values()) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="got 3 entries for 4 actors"):
        counter.increment.scatter([1, 2, 3])


def test_rref_stays_on_its_rank(procs: ProcMesh) -> None:
    where = procs.spawn("where", Where)
    handle = where.rank.rref()
    assert [v[0] for v in where.echo.call(handle).get(T).values()] == [0, 1, 2, 3]


def test_sync_and_async_endpoints_mix(procs: ProcMesh) -> None:
    mixed = procs.spawn("mixed", Mixed)
    slow, sync = mixed.slow.call(), mixed.sync.call()
    assert slow.get(T).reduce("equal") == "slow"
    assert sync.get(T).reduce("equal") == "sync"
    # One message at a time: the sync one waited until the async one had ended.
    assert mixed.history.call().get(T).reduce("equal") == ["slow begins", "slow ends", "sync"]


def test_concurrent_endpoints_let_others_in(procs: ProcMesh) -> None:
    mixed = procs.spawn("mixed", Mixed)
    waiting = mixed.wait_for_gate.call()
    mixed.open_gate.call().get(T)
    assert waiting.get(T).reduce("equal") == "open"


def test_futures_can_be_awaited(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)

    async def program() -> tuple[int, list[int]]:
        await counter.initialized
        first = await counter.slice(hosts=0, gpus=0).increment.call_one()
        many = await asyncio.gather(*[_as_coroutine(counter.increment.call()) for _ in range(5)])
        return first, [m.reduce("max") for m in many]

    assert asyncio.run(program()) == (1, [2, 3, 4, 5, 6])


async def _as_coroutine(future: Future[Any]) -> Any:
    return await future


def test_time_out_does_not_consume(doomed: ProcMesh) -> None:
    from sample_actors import Faulty

    actor = doomed.spawn("sleeper", Faulty)
    future = actor.sleep.call(0.5)
    with pytest.raises(RankTimeout, match=r"no answer to sleeper.sleep within 0.01 s"):
        future.get(timeout=0.01)
    assert not future.done()
    assert future.get(T).reduce("equal") is None
    assert future.done()


def test_callbacks_run_when_done(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    called = threading.Event()
    future = counter.increment.call()
    future.add_done_callback(lambda f: called.set())
    assert called.wait(T)
    assert future.exception() is None
    assert future.result().reduce("equal") == 1
    assert future.to_concurrent().result(T).reduce("equal") == 1


def test_threads_wait_for_the_same_future(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    with ThreadPoolExecutor(4) as pool:
        for n in range(100):  # they come before, while and after one of them reads the answer
            future = counter.increment.call()
            found = [pool.submit(future.get, T) for _ in range(4)]
            assert [f.result(T).reduce("equal") for f in found] == [n + 1] * 4


def test_exception_is_returned_not_raised(procs: ProcMesh) -> None:
    from sample_actors import Faulty

    error = procs.spawn("faulty", Faulty).raise_on.call([1], "no").exception(T)
    assert isinstance(error, ActorError)


def test_channels_carry_values_and_exceptions(procs: ProcMesh) -> None:
    port, receiver = Channel.open()
    procs.slice(hosts=1, gpus=1).spawn("sender", Caller).send_many.call_one(port, 20).get(T)
    assert [receiver.recv().get(T) for _ in range(20)] == list(range(20))
    port.exception(KeyError("lost"))
    with pytest.raises(ActorError, match="KeyError"):
        receiver.recv().get(T)


def test_ranked_channels_say_who_sent(procs: ProcMesh) -> None:
    port, receiver = Channel.open_ranked()
    procs.spawn("sender", Caller).send_many.call(port, 1).get(T)
    assert sorted(receiver.recv().get(T) for _ in range(4)) == [(rank, 0) for rank in range(4)]


def test_explicit_response_port(procs: ProcMesh) -> None:
    caller = procs.spawn("caller", Caller)
    assert caller.answer_on_port.call(21).get(T).reduce("equal") == 42


def test_send_to_a_port_of_ours(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter, 7)
    port, receiver = Channel.open()
    send(counter.get, (), {}, port=port)
    assert sorted(receiver.recv().get(T) for _ in range(4)) == [7, 7, 7, 7]


def test_accumulator(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter, 3)
    assert Accumulator(counter.increment, 100, lambda a, b: a + b).accumulate(1).get(T) == 116


def test_actors_call_actors(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    caller = procs.slice(hosts=1, gpus=0).spawn("caller", Caller, counter)
    assert caller.total.call_one(2).get(T) == 8
    caller.hold.call_one(counter.slice(hosts=0)).get(T)
    assert caller.total.call_one(1).get(T) == 6
    mixed = procs.slice(hosts=0, gpus=1).spawn("mixed", Mixed)
    assert mixed.ask.call_one(counter).get(T) == 3 + 3 + 2 + 2


def test_actors_spawn_actors(procs: ProcMesh) -> None:
    caller = procs.slice(hosts=1, gpus=1).spawn("caller", Caller)
    child = caller.spawn_counter.call_one(40).get(T)
    assert child.increment.call_one(2).get(T) == 42


def test_controllers_are_singletons(procs: ProcMesh) -> None:
    one = get_or_spawn_controller(f"tally of {procs.name}", Counter, 5).get(T)
    two = get_or_spawn_controller(f"tally of {procs.name}", Counter, 99).get(T)
    one.increment.call_one().get(T)
    assert two.get.call_one().get(T) == 6


def test_execute_runs_on_the_main_thread(procs: ProcMesh) -> None:
    def where(x: int) -> tuple[bool, int]:
        return threading.current_thread() is threading.main_thread(), x

    assert procs.execute(where, 3).get(T).reduce("equal") == (True, 3)
    with pytest.raises(ActorError, match="ZeroDivisionError"):
        procs.execute(lambda: 1 // 0).get(T)


def test_spawn_checks_arguments_here(procs: ProcMesh) -> None:
    with pytest.raises(TypeError, match=r"Counter\(start: .*was spawned with other arguments"):
        procs.spawn("counter", Counter, 1, 2)
    with pytest.raises(TypeError, match="subclass of Actor"):
        procs.spawn("counter", dict)  # type: ignore[type-var]


def test_calls_check_arguments_here(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    with pytest.raises(TypeError, match=r"counter.increment\(by: .*too many positional"):
        counter.increment.call(1, 2)
    with pytest.raises(AttributeError, match="no endpoint 'incremet'; it has: get, increment, note"):
        counter.incremet.call()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="is called through an adverb"):
        counter.increment()
    with pytest.raises(AttributeError, match="decorate it with @endpoint"):
        counter.plain.call(1)  # type: ignore[attr-defined]
    assert as_endpoint(counter.plain).call(4).get(T).reduce("equal") == 4


def test_what_cannot_be_pickled_is_named_by_its_path(procs: ProcMesh) -> None:
    class Config:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    where = procs.spawn("where", Where)
    with pytest.raises(
        CannotPickle, match=r"where.echo: argument `value`, key 'cfg', attribute `lock`: cannot pickle"
    ):
        where.echo.call({"cfg": Config()})


def test_classes_made_here_travel(procs: ProcMesh) -> None:
    class Base:
        def double(self) -> int:
            return 2 * self.x  # type: ignore[attr-defined]

    class Item(Base):
        def __init__(self, x: int) -> None:
            self.x = x

    class Local(Actor):
        def __init__(self, item: Item) -> None:
            self.item = item

        @endpoint
        def swap(self, item: Item) -> Item:
            old, self.item = self.item, Item(item.double())
            return old

    local = procs.spawn("local", Local, Item(1))
    assert all(isinstance(v, Item) and v.x == 1 for v in local.swap.call(Item(4)).get(T).values())
    assert [v.x for v in local.swap.call(Item(0)).get(T).values()] == [8] * 4


def test_stopped_actors_are_dead(procs: ProcMesh) -> None:
    counter = procs.spawn("counter", Counter)
    counter.get.call().get(T)
    counter.stop().get(T)  # type: ignore[attr-defined]
    with pytest.raises(SupervisionError, match="'counter' is dead: it was stopped"):
        counter.get.call()


def test_environment_of_ranks(hosts: Any) -> None:
    mesh = spawn_two_by_two(hosts, env={"MONARCH_NB_TEST": "yes"})
    assert mesh.spawn("where", Where).variable.call("MONARCH_NB_TEST").get(T).reduce("equal") == "yes"
    mesh.set_environment([{"MINE": str(i)} for i in range(4)]).get(T)
    assert list(mesh.execute(lambda: __import__("os").environ["MINE"]).get(T).values()) == list("0123")
    mesh.stop().get(T)


def test_bootstrap_runs_first(hosts: Any) -> None:
    def prepare() -> None:
        import os

        os.environ["PREPARED"] = "1"

    mesh = spawn_two_by_two(hosts, bootstrap=prepare)
    assert mesh.spawn("where", Where).variable.call("PREPARED").get(T).reduce("equal") == "1"
    mesh.stop().get(T)


def test_spawn_method_starts_fresh_interpreters(hosts: Any) -> None:
    mesh = hosts.spawn_procs({"gpus": 1}, method="spawn")
    loaded = mesh.execute(lambda: "torch" in __import__("sys").modules).get(60)
    assert loaded.reduce("equal") is False
    mesh.stop().get(T)
