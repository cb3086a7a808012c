"""Two hundred breakpoints on eight ranks, with interrupts, kills, and clients that leave, between: nothing
is left hanging.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from debugged_actors import Debugged
from waiting import ask_until

from monarch_nb import mesh as meshes
from monarch_nb._client import session as sessions
from monarch_nb._debug import MeshDebugger, Stop
from monarch_nb.exceptions import MeshError
from monarch_nb.mesh import Mesh

NUM_CYCLES = int(os.environ.get("MONARCH_NB_SOAK_BREAKS", "60"))
NUM_RANKS = 8
PATIENCE_S = 60.0
CELL = "value = rank\nbreakpoint()\nvalue += 1\n"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    before = sessions._current
    started = meshes.start("buggy", {"gpus": NUM_RANKS})
    yield started
    started.stop().get(PATIENCE_S)
    sessions._current = before


def stops_on(debugger: MeshDebugger, ranks: set[int]) -> list[Stop]:
    """Return the stops once exactly these ranks stand."""
    return ask_until(
        debugger.stops, lambda stops: {s.rank for s in stops} == ranks, f"ranks {ranks} that stand"
    )


def test_breakpoints_one_after_the_other(mesh: Mesh, unhandled: list[Any]) -> None:
    chance = random.Random(6)
    actor: Any = mesh.spawn("debugged", Debugged)
    everybody = set(range(NUM_RANKS))
    for cycle in range(NUM_CYCLES):
        in_cell = chance.random() < 0.7
        run = mesh.submit(CELL) if in_cell else actor.add.call(cycle)
        stops = stops_on(mesh.debugger(), everybody)
        end = chance.choice(("continue", "continue", "step", "quit", "interrupt", "kill", "leave"))
        if end == "step":
            answers = mesh.debugger().send(stops, "n")
            assert len(answers.texts) == NUM_RANKS and not answers.left
        elif end == "interrupt" and in_cell:
            mesh.interrupt()
            assert run.wait().stopped == tuple(sorted(everybody))
        elif end == "kill":
            victim = chance.randrange(NUM_RANKS)
            os.kill(mesh.status(fresh=False).ranks[victim].pid, signal.SIGKILL)
            stops_on(mesh.debugger(), everybody - {victim})
        elif end == "leave":  # another client takes over, as after a kernel's restart
            other = meshes.attach(mesh.name, listens=False)
            assert len(other.debugger().stops()) == NUM_RANKS
            other.debugger().send(other.debugger().stops(), "continue")
            other._session.close()
        left = mesh.debugger().stops()
        if left:
            mesh.debugger().send(left, "quit" if end == "quit" else "continue")
        if in_cell:
            result = run.wait()
            assert len(result.failures) == (1 if end == "kill" else 0)
        else:
            try:
                run.get(PATIENCE_S)
            except MeshError:
                assert end == "kill"
        stops_on(mesh.debugger(), set())
        if end == "kill":
            report = mesh.heal()
            assert report.ranks == (victim,)
            unhandled.clear()
    mesh.run("assert value in (rank, rank + 1) if 'value' in globals() else True")
    assert [r.state for r in mesh.status().ranks] == ["idle"] * NUM_RANKS
