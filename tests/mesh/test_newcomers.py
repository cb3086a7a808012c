"""Hosts that join, or take a lost one's place, after a sync: they have what the others were given, or are
named with what they lack.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from apart_hosts import mesh_apart
from waiting import wait_until

from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.states import HostState
from monarch_nb.actor.handle import session_of
from monarch_nb.mesh import Mesh

pytestmark = pytest.mark.usefixtures("unhandled")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("brought")
    (folder / "brought.py").write_text("def version():\n    return 'v1'\n")
    before = os.getcwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    os.chdir(before)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a package is installed that hosts don't have."""
    folder = tmp_path_factory.mktemp("own") / "site-packages"
    info = folder / "onlyhere-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: onlyhere\nVersion: 1.5\n")
    (info / "RECORD").write_text("onlyhere/__init__.py,,\n")
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def mesh(project: Path, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two hosts and three spares, none of which see the notebook's files."""
    store = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_NB_STORE", str(store))
        with mesh_apart("joined", {"gpus": 1}, 2, [project, store, site], size="4m", num_spares=3) as found:
            found.sync()
            yield found


def lose_last_host(mesh: Mesh) -> int:
    """Kill the process of the mesh's last host; return its index once everybody knows."""
    index = mesh.host_indices[-1]
    row = next(row for row in session_of(mesh).request(Status()).hosts if row.index == index)
    os.kill(row.pid, signal.SIGKILL)
    wait_until(lambda: len(mesh.living_ranks()) < len(mesh), "the loss is known")
    return index


def versions(mesh: Mesh) -> list[str]:
    shown = mesh.run("import brought, os; brought.version(), os.path.exists('brought.py')").bundles
    return [bundle["text/plain"] for _, bundle in sorted(shown.items())]


def is_named(mesh: Mesh, index: int) -> bool:
    """Say whether the mesh's state says what a host lacks, and what to type."""
    found = {host.index: host.differs for host in mesh.status().hosts}
    return found[index].startswith("onlyhere isn't there: %mesh sync --env")


def test_a_host_that_takes_a_lost_ones_place_gets_the_workspace(
    mesh: Mesh, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "brought.py").write_text("def version():\n    return 'v2'\n")
    mesh.sync()
    index = lose_last_host(mesh)
    mesh.heal()
    output = capsys.readouterr().err
    assert (
        f"hosts have joined since workspace {project} was sent:\n[host {index}] 1 new (brought.py)" in output
    )
    assert versions(mesh) == ["('v2', True)"] * 2
    wait_until(lambda: is_named(mesh, index), "it's compared")


def test_by_itself_it_gets_it_before_the_next_cell(
    mesh: Mesh, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh.on_failure("heal")
    index = lose_last_host(mesh)
    wait_until(lambda: len(mesh.living_ranks()) == len(mesh), "it's healed")
    mesh.on_failure("stop")
    assert versions(mesh) == ["('v2', True)"] * 2
    assert f"[host {index}] 1 new (brought.py)" in capsys.readouterr().err
    assert versions(mesh) == ["('v2', True)"] * 2 and not capsys.readouterr().err


def test_a_host_that_the_mesh_grows_by_gets_it_and_one_that_has_left_is_forgotten(
    mesh: Mesh, project: Path
) -> None:
    rows = session_of(mesh).request(Status()).hosts
    spare = next(r.index for r in rows if r.state == HostState.UP and r.index not in (0, *mesh.host_indices))
    mesh.take_hosts([spare])
    assert versions(mesh) == ["('v2', True)"] * 3
    wait_until(lambda: is_named(mesh, spare), "it's compared")
    mesh.sync_mode = "watch"
    mesh.leave_hosts([spare])
    (project / "brought.py").write_text("def version():\n    return 'v3'\n")
    assert versions(mesh) == ["('v3', True)"] * 2
