"""The end of hosts' time: it's told, states are saved, and then no cell is taken. What an engine would say is
said by the test; tests/engines has it of a real one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from monarch_nb import start
from monarch_nb._client import session as sessions
from monarch_nb._protocol.programs import SetTimeLimit
from monarch_nb.actor import Checkpointed, endpoint
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshError
from monarch_nb.mesh import Mesh

T = 60


class Counter(Checkpointed):
    def __init__(self, directory: str) -> None:
        self.value = 0
        self.checkpoint_dir = directory

    @endpoint
    def add(self) -> int:
        self.value += 1
        return self.value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


@pytest.fixture(scope="module")
def limited() -> Iterator[Mesh]:
    before = sessions._current
    mesh = start("limited", {"procs": 2})
    yield mesh
    mesh.stop().get(T)
    sessions._current = before


def limit(mesh: Mesh, left_s: float | None) -> None:
    ends_at = None if left_s is None else time.time() + left_s
    session_of(mesh).request(SetTimeLimit(ends_at, "slurm job 7"))


def notes(mesh: Mesh) -> list[str]:
    return [entry.source for entry in mesh.history() if "slurm job 7" in entry.source]


def test_time_left_is_in_the_status(limited: Mesh) -> None:
    limit(limited, 3 * 3600 + 1)
    line = "  hosts: 3 h left of slurm job 7; more time: %mesh extend 1h"
    assert line in limited.status().text().splitlines()
    limit(limited, None)
    assert "hosts:" not in limited.status().text()


def test_the_end_is_told_and_states_are_saved_before(
    limited: Mesh, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    counter: Any = limited.spawn("counter", Counter, str(tmp_path))
    counter.add.call().get(T)
    limited.set_notice(1800.0)
    limit(limited, 1801.0)
    wait_until(lambda: list(tmp_path.glob("*/step-1/.metadata")), "a state on disk")
    (note,) = notes(limited)
    assert note.startswith("slurm job 7 ends in 30 min, and the hosts of mesh 'limited' with it. More time:")
    limit(limited, 1750.0)
    assert notes(limited) == [note], "told once"
    limit(limited, None)
    limit(limited, 1750.0)
    assert len(notes(limited)) == 2, "a limit after there was none is told"
    wait_until(lambda: note in capfd.readouterr().err, "a notice that the program shows")
    counter.stop().get(T)


def test_no_cell_begins_that_would_be_cut_off(limited: Mesh) -> None:
    limit(limited, 15.0)
    with pytest.raises(
        MeshError, match=r"slurm job 7 ends in 1\d s: a cell would be cut off. More time: %mesh"
    ):
        limited.run("x = 1")
    limit(limited, 3600.0)
    limited.run("x = 2")
    limited.set_notice(None)
    limit(limited, 15.0)
    limited.run("x = 3")
    assert limited.notice() is None
    limit(limited, None)
