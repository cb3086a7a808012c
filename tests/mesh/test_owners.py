"""Who owns what: ends with its owner, tells its owner, and says its name. As programs written for Monarch
expect it.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from owning_actors import Failing, Leaf, Owner, OwnsElsewhere, Waiting, Who
from processes import wait_for_exit
from waiting import wait_until

from monarch_nb.actor import (
    Actor,
    Channel,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    concurrent_endpoint,
    context,
    endpoint,
    this_host,
)


@pytest.fixture(scope="module")
def two() -> Iterator[ProcMesh]:
    with this_host().spawn_procs({"gpus": 2}) as procs:
        yield procs


@pytest.fixture(scope="module")
def one(two: ProcMesh) -> ProcMesh:
    return two.slice(gpus=0)


ENDED = [
    "root.beside", "root.deeper", "root.deeper.beside", "root.deeper.on_procs", "root.on_procs", "root",
]  # fmt: skip


def _wait_for(unhandled: list[MeshFailure]) -> None:
    wait_until(lambda: unhandled, "a failure that nobody handles is told")


def _check_order(heard: list[str]) -> None:
    assert sorted(heard) == sorted(ENDED)
    for child in ENDED:
        owner = child.rpartition(".")[0]
        if owner:
            assert heard.index(child) < heard.index(owner), heard


def test_stopping_an_actor_stops_what_it_owns_first(one: ProcMesh) -> None:
    port, receiver = Channel.open()
    owner: Any = one.spawn("root", Owner, "root", port)
    beside, pid = owner.children.call_one().get()
    owner.stop("over").get()
    _check_order([receiver.recv().get(60) for _ in ENDED])
    assert wait_for_exit(pid)
    with pytest.raises(SupervisionError, match="its owner 'root' has ended"):
        beside.pid.call_one().get()


def test_stopping_processes_stops_what_their_actors_own() -> None:
    port, receiver = Channel.open()
    procs = this_host().spawn_procs()
    owner: Any = procs.spawn("root", Owner, "root", port)
    _, pid = owner.children.call_one().get()
    procs.stop(grace_s=60.0).get(60)  # on a busy machine they may need more than they're given otherwise
    _check_order([receiver.recv().get(60) for _ in ENDED])
    assert wait_for_exit(pid)


def test_an_actor_that_is_being_stopped_cleans_up_before_its_process_goes() -> None:
    port, receiver = Channel.open()
    procs = this_host().spawn_procs()
    leaf: Any = procs.spawn("leaf", Leaf, "leaf", port)
    leaf.pid.call_one().get()
    stopping = leaf.stop(), procs.stop(grace_s=60.0)
    assert receiver.recv().get(60) == "leaf"
    for each in stopping:
        each.get(60)


def test_what_an_actor_owns_ends_when_it_fails(one: ProcMesh, unhandled: list[MeshFailure]) -> None:
    port, receiver = Channel.open()
    owner: Any = one.spawn("root", Owner, "root", port, 0)
    _, pid = owner.children.call_one().get()
    owner.fail.broadcast()
    assert sorted(receiver.recv().get(60) for _ in range(2)) == ["root.beside", "root.on_procs"]
    assert wait_for_exit(pid)


@pytest.mark.parametrize("is_async_hook", [False, True])
def test_an_owner_is_told_while_its_endpoint_waits(one: ProcMesh, is_async_hook: bool) -> None:
    waiting: Any = one.spawn("waiting", Waiting, is_async_hook)
    heard = waiting.break_child_and_wait.call_one().get(60)
    assert len(heard) == 1
    assert "an error" in heard[0]
    waiting.stop().get()


@pytest.mark.parametrize("name", ["raise_base", "raise_base_async"])
def test_what_is_no_exception_ends_the_actor_and_is_a_supervision_error(
    one: ProcMesh, unhandled: list[MeshFailure], name: str
) -> None:
    failing: Any = one.spawn("failing", Failing)
    with pytest.raises(SupervisionError) as raised:
        getattr(failing, name).call_one().get()
    assert isinstance(raised.value, RuntimeError)
    with pytest.raises(SupervisionError):
        failing.ok.call_one().get()
    _wait_for(unhandled)
    failing.stop().get()


@pytest.mark.parametrize("how", ["abort", "kill"])
def test_an_actor_that_aborts_itself_answers_and_is_dead(
    one: ProcMesh, unhandled: list[MeshFailure], how: str
) -> None:
    failing: Any = one.spawn("failing", Failing)
    assert failing.end.call_one(how).get() == "answered"
    with pytest.raises(RuntimeError, match="'failing' has aborted itself on rank 0: enough") as raised:
        failing.ok.call_one().get()
    assert isinstance(raised.value, SupervisionError)
    _wait_for(unhandled)
    assert "enough" in str(unhandled[0])
    beside: Any = one.spawn("beside", Failing)  # the process lives
    beside.ok.call_one().get()
    beside.stop().get()


def test_an_actor_that_stops_itself_answers_and_is_gone(one: ProcMesh, unhandled: list[MeshFailure]) -> None:
    failing: Any = one.spawn("failing", Failing)
    assert failing.end.call_one("stop").get() == "answered"
    with pytest.raises(SupervisionError, match="it was stopped: enough"):
        failing.ok.call_one().get()
    assert not unhandled


def test_an_explicit_port_endpoint_that_raises_is_heard_of(
    one: ProcMesh, unhandled: list[MeshFailure]
) -> None:
    failing: Any = one.spawn("failing", Failing)
    with pytest.raises(SupervisionError, match="no answer"):
        failing.raise_instead_of_answering.call_one().get()
    with pytest.raises(SupervisionError):
        failing.ok.call_one().get()
    _wait_for(unhandled)
    assert "raise_instead_of_answering" in str(unhandled[0])
    failing.stop().get()


def test_endpoints_with_names_that_nobody_could_call_are_refused(one: ProcMesh) -> None:
    class Stopper(Actor):
        @endpoint
        def stop(self) -> None:
            """Hidden by the mesh's."""

        @endpoint
        def slice(self) -> None:
            """So is this."""

    with pytest.raises(ValueError, match=r"Stopper.slice and \S*Stopper.stop can't be endpoints"):
        one.spawn("stopper", Stopper)


def test_concurrent_endpoint_says_what_it_cannot_wrap() -> None:
    with pytest.raises(ValueError, match=r"does not wrap @endpoint.*Stacked.ping"):

        class Stacked(Actor):
            @concurrent_endpoint
            @endpoint
            async def ping(self) -> None:
                """Never an endpoint."""

    with pytest.raises(ValueError, match=r"needs an async method.*Sync.ping"):

        class Sync(Actor):
            @concurrent_endpoint
            def ping(self) -> None:
                """Never an endpoint."""


def test_instances_say_who_they_are(two: ProcMesh) -> None:
    who: Any = two.spawn("who", Who)
    found = list(who.am_i.call().get().values())
    assert [each["full"] for each in found] == [
        f"<root>.<owning_actors.Who who{{'gpus': {i}/2}}>" for i in range(2)
    ]
    assert found[0]["by"] == "<root>"
    assert (found[0]["by_name"], found[0]["name"], found[0]["class"]) == ("root", "who", "owning_actors.Who")
    assert found[1]["procs"].extent == two.extent
    assert found[0]["logger"] == "Who"
    child = who.slice(gpus=1).child.call_one().get()
    assert child["full"] == "<root>.<owning_actors.Who who{'gpus': 1/2}>.<owning_actors.Who child>"
    me = context().actor_instance
    assert (str(me), me.name, me.creator) == ("<root>", "root", None)
    who.stop().get()


def test_what_an_actor_logs_has_its_name(two: ProcMesh) -> None:
    who: Any = two.spawn("who", Who)
    assert list(who.logged.call(True).get().values()) == [
        f"[actor=<root>.<owning_actors.Who who{{'gpus': {i}/2}}>] 100% of it" for i in range(2)
    ]
    assert who.slice(gpus=0).logged.call_one(False).get() == "100% of it"
    assert "[actor=" not in logging.LogRecord("x", 10, "", 0, "here", (), None).getMessage()
    who.stop().get()


@pytest.mark.parametrize("policy", ["stop", "heal"])
def test_what_actors_of_a_killed_process_own_elsewhere_is_stopped(
    policy: str, unhandled: list[MeshFailure]
) -> None:
    """Children first, and all clean up; a new owner starts afresh."""
    port, receiver = Channel.open()
    with this_host().spawn_procs({"gpus": 2}) as procs:
        procs.on_failure(policy)
        owner: Any = procs.slice(gpus=0).spawn("root", OwnsElsewhere, port, procs.slice(gpus=1))
        owner_pid, elsewhere, on_procs = owner.pids.call_one().get()
        os.kill(owner_pid, signal.SIGKILL)
        heard = [receiver.recv().get(60) for _ in range(3)]
        assert sorted(heard) == ["elsewhere", "elsewhere.child", "on_procs"]
        assert heard.index("elsewhere.child") < heard.index("elsewhere")
        assert wait_for_exit(on_procs)
        assert (
            procs.slice(gpus=1).execute(os.getpid).get().item() == elsewhere
        )  # that process isn't the owner's
        if policy == "heal":
            wait_until(procs.healthy, "the owner's process is back")
            new_pid, elsewhere_again, on_new_procs = owner.pids.call_one().get()
            assert elsewhere_again == elsewhere
            assert len({owner_pid, new_pid, on_procs, on_new_procs}) == 4
