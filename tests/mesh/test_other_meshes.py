"""A handle stays what it is in the actors of another mesh: it leads to its own, or says why it can't."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import wait_for_exit
from visiting_actors import Onlooker, Store, Visitor
from waiting import wait_until

from monarch_nb import mesh as meshes
from monarch_nb._client import session as sessions
from monarch_nb._protocol.programs import Status
from monarch_nb._wire.mesh_address import APART
from monarch_nb.actor import ActorError, Channel, MeshFailure, ProcMesh, this_host
from monarch_nb.actor.handle import mesh_of, placement_of
from monarch_nb.exceptions import MeshUnreachable, SupervisionError
from monarch_nb.mesh import Mesh


@pytest.fixture(scope="module")
def there() -> Iterator[Mesh]:
    """Another mesh than the one that this program uses."""
    own = sessions.current()
    mesh = meshes.start("there", {"gpus": 2})
    sessions.use(own)
    yield mesh
    if not mesh._stopped:
        mesh.stop().get(30)


@pytest.fixture(scope="module")
def store(there: Mesh) -> Any:
    return there.spawn("store", Store)


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    """Ranks of this program's own mesh."""
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def visitor(procs: ProcMesh) -> Any:
    return procs.spawn("visitor", Visitor)


def test_an_actor_calls_an_actor_of_another_mesh(visitor: Any, store: Any) -> None:
    before = sum(store.add.call(0).get().values())
    found = [value for each in visitor.add.call(store, 1).get().values() for value in each]
    assert sorted(found) == [1, 1, 2, 2]  # two visitors, two stores
    assert sum(store.add.call(0).get().values()) == before + 4
    assert sum(visitor.slice(gpus=1).add_async.call_one(store.slice(gpus=0), 1).get()) >= 1
    assert sum(store.add.call(0).get().values()) == before + 5


def test_an_actor_spawns_on_the_mesh_that_it_was_handed(visitor: Any, store: Any, there: Mesh) -> None:
    handle, pids = visitor.slice(gpus=0).spawn_on.call_one(there).get()
    assert pids == list(store.pid.call().get().values())
    assert list(handle.add.call(1).get().values()) == [101, 101]  # back here, it's a handle on that mesh, too
    parents = visitor.slice(gpus=0).spawn_procs_on.call_one(there.host_mesh).get()
    assert parents == list(there.slice(gpus=0).execute(os.getppid).get().values())


def test_a_handle_is_passed_on_unused(visitor: Any, store: Any, there: Mesh) -> None:
    back = visitor.slice(gpus=0).pass_on.call_one(store).get()
    assert list(back.pid.call().get().values()) == list(store.pid.call().get().values())
    procs = visitor.slice(gpus=0).pass_on.call_one(there.slice(gpus=1)).get()
    assert list(procs.execute(int, "7").get().values()) == [7]


def test_ports_and_results_that_stayed_there_belong_to_their_mesh(visitor: Any, store: Any) -> None:
    assert visitor.slice(gpus=0).receive.call_one(store).get() == [0, 1]
    port, receiver = Channel.open()  # of the mesh in use
    store.send.broadcast(port)
    assert sorted(receiver.recv().get(60) for _ in range(2)) == [0, 1]
    kept = store.add.rref(0)
    assert repr(visitor.slice(gpus=0).pass_on.call_one(kept).get()) == repr(kept)


def test_large_tensors_cross_meshes(visitor: Any, store: Any) -> None:
    num = 1 << 20
    assert visitor.slice(gpus=0).double.call_one(store, num).get() == 2.0 * num


def test_what_fails_in_another_mesh_is_told_to_its_owner(visitor: Any, there: Mesh) -> None:
    owner = visitor.slice(gpus=1)
    port, receiver = Channel.open()
    owned = owner.own.call_one(there, port).get()
    owner.let_it_fail.call_one().get()
    assert "the store is broken" in receiver.recv().get(60)
    owned.stop().get()


def test_an_error_says_that_a_mesh_cannot_be_reached(visitor: Any, there: Mesh) -> None:
    mesh = mesh_of(there)
    assert mesh is not None
    elsewhere = mesh._replace(mesh_id="another", machine="another boot", hostname="nodeB")
    far = ProcMesh(replace(placement_of(there), group="far"), None, elsewhere)
    one = visitor.slice(gpus=0)
    assert one.pass_on.call_one(far).get().extent == far.extent  # to hold it does no harm
    with pytest.raises(
        ActorError, match=r"mesh 'there' can't be reached from rank 0 of .*its controller is on nodeB"
    ) as raised:
        one.spawn_on.call_one(far).get()
    assert raised.value.failures[0].type == "MeshUnreachable"
    with pytest.raises(MeshUnreachable, match="nodeB"):
        pickle.loads(pickle.dumps(far)).spawn("store", Store)


def test_from_another_machine_an_envoy_goes(store: Any, there: Mesh) -> None:
    """Ranks that believe that they are on another machine than both controllers, and so can't enter the other
    mesh by themselves."""
    with this_host().spawn_procs({"gpus": 2}, env={APART: "b"}) as apart:
        visitor: Any = apart.spawn("visitor", Visitor)
        before = sum(store.add.call(0).get().values())
        visitor.add.call(store, 1).get()
        assert sum(visitor.slice(gpus=1).add_async.call_one(store, 1).get()) == before + 6
        one = visitor.slice(gpus=0)
        assert one.receive.call_one(store).get() == [0, 1]
        handle, pids = one.spawn_on.call_one(there).get()
        assert pids == list(store.pid.call().get().values())
        handle.stop().get()
        assert one.spawn_procs_on.call_one(there.host_mesh).get() == list(
            there.slice(gpus=0).execute(os.getppid).get().values()
        )
        port, receiver = Channel.open()
        one.send_to.call_one(port, 7).get()
        assert receiver.recv().get(60) == 7
        with pytest.raises(ActorError, match=r"rank 0: ActorError: store.fail: 2 of 2 ranks failed"):
            one.let_fail.call_one(store).get()
        entered = {client.pid for client in there._session.request(Status()).clients}
        assert entered.isdisjoint(apart.execute(os.getpid).get().values())


def test_what_an_envoy_has_spawned_ends_with_the_actor_that_asked(there: Mesh) -> None:
    with this_host().spawn_procs(env={APART: "b"}) as apart:
        visitor: Any = apart.spawn("visitor", Visitor)
        handle, pids = visitor.spawn_on.call_one(there).get()
        assert list(handle.pid.call().get().values()) == pids
        visitor.stop("over").get()
        with pytest.raises(SupervisionError, match="its owner 'visitor' has ended"):
            handle.pid.call().get()


@pytest.fixture(params=[{}, {APART: "b"}], ids=["as a guest", "by an envoy"])
def doomed_rank(request: pytest.FixtureRequest) -> Iterator[ProcMesh]:
    """One rank of a test's own, which may kill it; it reaches other meshes in this way."""
    with this_host().spawn_procs(env=request.param) as procs:
        procs.initialized.get(60)
        yield procs


def kill(procs: ProcMesh) -> None:
    (pid,) = procs.execute(os.getpid).get().values()
    os.kill(pid, signal.SIGKILL)


def why_it_was_stopped(store: Any) -> str:
    """Return why an actor of a living process takes no calls any more, once it doesn't."""

    def refusal() -> str:
        try:
            store.pid.call().get(60)
        except SupervisionError as error:
            return str(error)
        return ""

    return wait_until(refusal, "it's stopped")


def test_what_actors_of_a_killed_process_own_in_another_mesh_is_stopped(
    doomed_rank: ProcMesh, there: Mesh, unhandled: list[MeshFailure]
) -> None:
    owner, keeper = (doomed_rank.spawn(name, Visitor) for name in ("owner", "keeper"))
    store, pids = owner.spawn_on.call_one(there).get()
    kept = keeper.keep_procs_on.call_one(there.host_mesh).get()
    (kept_pid,) = kept.execute(os.getpid).get().values()
    kill(doomed_rank)
    assert "the process of its owner, rank 0" in why_it_was_stopped(store)
    assert wait_for_exit(kept_pid), "ranks that it owned are left"
    assert list(there.execute(os.getpid).get().values()) == pids, "the mesh that was visited has lost ranks"


def test_what_actors_of_a_killed_program_own_in_another_mesh_is_stopped(there: Mesh, tmp_path: Path) -> None:
    left = tmp_path / "handle"
    code = (
        "import pathlib, pickle, sys, time; from visiting_actors import Visitor\n"
        "from monarch_nb import mesh; from monarch_nb.actor import this_proc\n"
        "procs = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "own, mine = (this_proc().spawn(name, Visitor).spawn_on.call_one(procs).get()[0] for name in 'ab')\n"
        "path = pathlib.Path(sys.argv[2]); new = path.with_suffix('.new')\n"
        "new.write_bytes(pickle.dumps(own)); new.rename(path)\n"
        "time.sleep(1000)"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code, pickle.dumps(there.flatten("gpus")).hex(), str(left)],
        env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)},
    )
    try:
        store = pickle.loads(wait_until(lambda: left.exists() and left.read_bytes(), "it has spawned"))
        assert store.add.call(1).get()
    finally:
        program.kill()
        program.wait()
    assert f"(pid {program.pid}), has ended" in why_it_was_stopped(store)


def test_an_actor_is_asked_of_what_an_envoy_has_spawned_for_it(
    there: Mesh, unhandled: list[MeshFailure]
) -> None:
    with this_host().spawn_procs(env={APART: "b"}) as apart:
        visitor: Any = apart.spawn("visitor", Visitor)
        port, receiver = Channel.open()
        visitor.own.call_one(there, port).get()
        visitor.let_it_fail.call_one().get()
        assert "owned.fail raised ValueError: the store is broken" in receiver.recv().get(60)
        visitor.stop_kept.call_one().get()
        assert not unhandled, "somebody else was told, too"
        doomed = there.host_mesh.spawn_procs({"gpus": 2})
        visitor.own.call_one(doomed, port).get()
        kill(doomed.slice(gpus=1))
        assert "actor 'owned' is lost on rank 1" in receiver.recv().get(60)
        doomed.stop(grace_s=0.0).get()


def test_a_program_hears_of_what_an_envoy_has_spawned_for_its_actors(
    there: Mesh, unhandled: list[MeshFailure]
) -> None:
    with this_host().spawn_procs(env={APART: "b"}) as apart:
        onlooker: Any = apart.spawn("onlooker", Onlooker)
        onlooker.let_one_fail.call_one(there).get()
        assert "unwatched.fail raised ValueError" in str(wait_until(lambda: unhandled, "it's told")[0])


def test_a_mesh_that_has_ended_is_said_to_have(visitor: Any, there: Mesh) -> None:
    """The last one: it ends the mesh that the others have used."""
    store, _ = visitor.slice(gpus=0).spawn_on.call_one(there).get()
    with this_host().spawn_procs() as fresh:
        newcomer = fresh.spawn("newcomer", Visitor)
        newcomer.initialized.get()
        there.stop().get(30)
        with pytest.raises(ActorError, match=r"SupervisionError|MeshEnded"):  # of its ranks, or of all of it
            visitor.slice(gpus=0).add.call_one(store, 1).get()
        with pytest.raises(ActorError, match="it has ended"):
            newcomer.spawn_on.call_one(there).get()
