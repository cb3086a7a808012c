"""What handles have inside, of meshes that this process isn't in: nothing here connects."""

from __future__ import annotations

import pickle

import pytest

from monarch_nb._shape import Extent, Shape
from monarch_nb._wire.mesh_address import MeshAddress
from monarch_nb.actor import Actor, HostMesh, ProcMesh, endpoint
from monarch_nb.actor.actor_mesh import ActorMesh, class_of, spawned_as, take_class
from monarch_nb.actor.handle import known_transport, mesh_of, placement_of
from monarch_nb.actor.placement import Placement
from monarch_nb.actor.proc_mesh import mark_stopped, part_at, why_stopped
from monarch_nb.exceptions import SupervisionError

ELSEWHERE = MeshAddress("another", "there", "another boot", "nodeB", "/nowhere", 1)
PLACEMENT = Placement((3, 4, 5, 6), Shape.full(Extent(["hosts", "gpus"], [2, 2])), "dev", (0, 1))


class Worker(Actor):
    """Its endpoints have names that a handle's inside might have."""

    @endpoint
    def placement(self) -> None: ...

    @endpoint
    def transport(self) -> None: ...

    @endpoint
    def session(self) -> None: ...


class Newer(Actor):
    """Takes the other's place."""


@pytest.fixture
def procs() -> ProcMesh:
    return ProcMesh(PLACEMENT, None, ELSEWHERE)


@pytest.fixture
def actors() -> ActorMesh[Worker]:
    return ActorMesh(Worker, "worker", 7, Placement(PLACEMENT.all_procs, PLACEMENT.shape), None, ELSEWHERE)


def test_a_slice_is_placed_within_its_spawn(procs: ProcMesh, actors: ActorMesh[Worker]) -> None:
    assert placement_of(procs.slice(hosts=1)).procs == (5, 6)
    assert placement_of(procs.flatten("ranks").slice(ranks=slice(1, 3))).procs == (4, 5)
    assert placement_of(actors.slice(gpus=0)).procs == (3, 5)
    assert placement_of(procs).procs == (3, 4, 5, 6)


def test_a_part_is_of_the_same_mesh(procs: ProcMesh) -> None:
    part = part_at(procs.slice(gpus=1), [1])
    assert (placement_of(part).procs, part.extent) == ((6,), Extent(["ranks"], [1]))
    assert (mesh_of(part), part.name) == (ELSEWHERE, "dev")


def test_hosts_are_placed_by_their_indices() -> None:
    hosts = HostMesh([0, 3], mesh=ELSEWHERE, owned=False)
    assert placement_of(hosts.slice(hosts=slice(1, 2))).host_indices == (3,)
    assert placement_of(hosts).host_indices == (0, 3)


def test_handles_survive_pickling_unconnected(procs: ProcMesh, actors: ActorMesh[Worker]) -> None:
    hosts = HostMesh([0, 3], mesh=ELSEWHERE, owned=False)
    for handle in (procs, procs.slice(gpus=1), actors, actors.slice(hosts=0), hosts):
        found = pickle.loads(pickle.dumps(handle))
        assert type(found) is type(handle)
        assert placement_of(found) == placement_of(handle)
        assert (mesh_of(found), known_transport(found)) == (ELSEWHERE, None)


def test_what_travels_is_what_travelled_before(procs: ProcMesh, actors: ActorMesh[Worker]) -> None:
    part = procs.slice(gpus=1)
    assert part.__reduce__()[1] == (
        "dev",
        (3, 4, 5, 6),
        Shape(Extent(["hosts"], [2]), (1, 3)),
        (0, 1),
        ELSEWHERE,
    )
    assert actors.__reduce__()[1] == (Worker, "worker", 7, (3, 4, 5, 6), PLACEMENT.shape, ELSEWHERE)


def test_endpoints_may_have_any_public_name_of_the_inside(actors: ActorMesh[Worker]) -> None:
    taken = [name for name in ("placement", "transport", "session") if hasattr(ActorMesh, name)]
    assert taken == []


def test_a_new_class_is_taken_on(actors: ActorMesh[Worker]) -> None:
    take_class(actors, Newer)
    assert (class_of(actors), spawned_as(actors)) == (Newer, "worker")


def test_what_was_stopped_says_so(procs: ProcMesh) -> None:
    assert why_stopped(procs) == ""
    mark_stopped(procs, "its hosts were stopped")
    assert why_stopped(procs.slice(hosts=0)) == "its hosts were stopped"
    with pytest.raises(SupervisionError, match="'dev' is dead: its hosts were stopped"):
        procs.spawn("worker", Worker)
