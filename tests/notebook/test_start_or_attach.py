"""Start-or-attach in Python, and a mesh where marimo shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import monarch_nb
from monarch_nb import Mesh

STARTER = """
import sys, monarch_nb
print("ready", flush=True); sys.stdin.readline()
mesh = monarch_nb.start("both", {"procs": 1}, attach=True)
print(mesh.status().pid, flush=True); sys.stdin.readline()
"""


def test_a_running_mesh_is_attached_to_if_it_is_what_was_asked_for() -> None:
    first = monarch_nb.start("again", {"procs": 2}, attach=True)
    try:
        first.run("x = 40 + rank")
        second = monarch_nb.start("again", {"procs": 2}, attach=True)
        assert list(second.pull("x").values()) == [40, 41]
        assert monarch_nb.start("again", attach=True).sizes == {"procs": 2}
        with pytest.raises(ValueError, match="mesh 'again' runs already with procs=2, not procs=3"):
            monarch_nb.start("again", {"procs": 3}, attach=True)
        assert type(second.pull("x")._repr_html_()) is str, "marimo shows nothing else"
        mime, shown = first._mime_()
        assert mime == "text/html" and "again" in shown and "procs=2" in shown
    finally:
        first.stop().get()
    assert first._mime_()[0] == "text/plain" and "has ended" in first._mime_()[1]


@pytest.fixture(scope="module")
def running() -> Iterator[Mesh]:
    mesh = monarch_nb.start("flags", {"procs": 1}, env={"COLOUR": "blue"})
    yield mesh
    mesh.stop().get()


def test_what_can_be_changed_is_applied(running: Mesh) -> None:
    same = monarch_nb.start(
        "flags",
        attach=True,
        env={"COLOUR": "blue"},
        idle_timeout_s=7200.0,
        on_failure="heal",
        with_program=True,
    )
    status = same.status()
    assert (status.idle_timeout_s, status.on_failure, status.owner_pid) == (7200.0, "heal", os.getpid())
    assert monarch_nb.start("flags", attach=True).status().owner_pid == os.getpid()
    status = monarch_nb.start("flags", attach=True, with_program=False).status()
    assert (status.idle_timeout_s, status.on_failure, status.owner_pid) == (7200.0, "heal", None)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"env": {"COLOUR": "red"}}, "was started with COLOUR=blue, not COLOUR=red"),
        ({"num_spares": 1}, "num_spares"),
        ({"method": "spawn"}, "method='spawn'"),
        ({"num_hosts": 2}, "procs=1, not hosts=2"),
    ],
)
def test_what_differs_is_refused(running: Mesh, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="start: mesh 'flags' runs already") as raised:
        monarch_nb.start("flags", attach=True, **asked)
    assert message in str(raised.value)


def test_programs_that_start_one_at_the_same_instant_all_get_it() -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        assert [p.stdout.readline() for p in programs if p.stdout] == ["ready\n"] * 3
        for program in programs:
            assert program.stdin
            program.stdin.write("go\n")
            program.stdin.flush()
        controllers = {p.stdout.readline().strip() for p in programs if p.stdout}
        assert len(controllers) == 1 and "" not in controllers, [p.communicate()[1] for p in programs]
    finally:
        ended = [p.communicate()[1] for p in programs]
        subprocess.run([sys.executable, "-m", "monarch_nb", "stop", "both"], check=False, capture_output=True)
    assert ended == [""] * 3
