"""Edited modules take effect on living ranks: before cells and calls, or when asked; nothing runs old code
unnoticed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_meshes import own_mesh
from waiting import wait_until

from monarch_nb import _reload
from monarch_nb._client.waiting import wait_simply
from monarch_nb._protocol.environment import GetPackages
from monarch_nb._reload import loaded as loaded_modules
from monarch_nb._wire import address
from monarch_nb.exceptions import ActorError, MeshUsageError
from monarch_nb.mesh import Mesh
from monarch_nb.mesh.drift import differences

NUM_SAVES = 10_000 if os.environ.get("MONARCH_NB_HOSTILE") == "full" else 40
SOURCE = """
from monarch_nb.actor import Actor, endpoint

CALLS = {"n": 0}
RATE = 1

class Counter(Actor):
    def __init__(self):
        self.steps = 0

    @endpoint
    def step(self):
        self.steps += 1
        CALLS["n"] += 1
        return "v1", self.steps, CALLS["n"]

    @endpoint
    async def waits(self, path):
        import asyncio, os
        while not os.path.exists(path):
            await asyncio.sleep(0.01)
        return await self.result()

    async def result(self):
        return "v1"

def version():
    return "v1"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("workspace")
    sys.path.insert(0, str(found))
    _reload.install()
    yield found
    loaded_modules.uninstall()
    sys.path.remove(str(found))


@pytest.fixture(scope="module")
def mesh(folder: Path) -> Iterator[Mesh]:
    with own_mesh("syncing", {"gpus": 3}) as found:
        yield found


@pytest.fixture
def module(folder: Path, mesh: Mesh, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A module of the test's own, loaded by all ranks."""
    path = folder / f"code_{request.node.name.partition('[')[0]}.py"
    path.write_text(SOURCE)
    mesh.run(f"import {path.stem} as code")
    yield path
    path.write_text(SOURCE)
    mesh.sync_mode = "off"
    mesh.sync()


def version(mesh: Mesh) -> list[str]:
    return values(mesh, "code.version()")


def values(mesh: Mesh, source: str) -> list[str]:
    """Run a cell; return each rank's last value."""
    return [bundle["text/plain"].strip("'") for _, bundle in sorted(mesh.run(source).bundles.items())]


def run(mesh: Mesh, source: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a cell; return what is shown."""
    mesh.run(source)
    return "".join(capsys.readouterr())


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_watched_cells_and_calls_run_the_new_code(mesh: Mesh, module: Path) -> None:
    sys.modules.pop(module.stem, None)
    code = __import__(module.stem)
    mesh.sync_mode = "watch"
    counter = mesh.spawn("counter", code.Counter)
    assert list(counter.step.call().get().values()) == [("v1", 1, 1)] * 3
    edit(module, "v1", "v2")
    assert list(counter.step.call().get().values()) == [("v2", 2, 2)] * 3, (
        "the actor's state, and the module's, stay"
    )
    assert version(mesh) == ["v2"] * 3
    edit(module, "v2", "v4")
    assert list(mesh.execute(code.version).get().values()) == ["v4"] * 3
    edit(module, "v4", "v2")
    again = mesh.spawn("again", code.Counter)
    assert list(again.step.call().get().values()) == [("v2", 1, 3)] * 3, (
        "its class is the new one from the start"
    )
    edit(module, "self.steps = 0", "self.steps = 10")
    third = mesh.spawn("third", code.Counter)
    assert [value[1] for value in third.step.call().get().values()] == [11] * 3
    again.stop().get()
    third.stop().get()
    edit(module, "def step(self):", "def step(self, more=7):")
    edit(module, '"v2", self.steps', '"v3", more')
    mesh.sync()
    assert [v[:2] for v in counter.step.call(more=8).get().values()] == [("v3", 8)] * 3
    counter.stop().get()


def test_a_call_under_way_ends_with_the_code_it_began_with_and_state_stays(
    mesh: Mesh, module: Path, tmp_path: Path
) -> None:
    sys.modules.pop(module.stem, None)
    code = __import__(module.stem)
    mesh.sync_mode = "watch"
    counter = mesh.spawn("waiter", code.Counter)
    counter.initialized.get()
    waits = counter.waits.call(str(tmp_path / "go"))
    edit(module, '        return "v1"\n', '        return "v2"\n')
    assert version(mesh) == ["v1"] * 3
    (tmp_path / "go").touch()
    assert list(waits.get().values()) == ["v2"] * 3, "what it calls later is new"
    counter.stop().get()


def test_hosts_with_this_programs_own_environment_answer_at_once(mesh: Mesh) -> None:
    assert differences(mesh._session, mesh.host_indices) == dict.fromkeys(mesh.host_indices, "")
    reply = mesh._session.transport.request(address.host_proc(0), GetPackages("other files", sys.prefix))
    wait_simply(reply, None)
    assert not reply.read().is_same and "pytest" in reply.read().packages


def test_warned_once_for_each_change(mesh: Mesh, module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mesh.sync_mode = "warn"
    edit(module, "v1", "v2")
    text = run(mesh, "code.version()", capsys)
    assert (
        f"{module.name} has changed since this rank loaded it" in text
        and "%mesh sync" in text
        and "v1" in text
    )
    assert "has changed" not in run(mesh, "code.version()", capsys)
    edit(module, "v2", "v3")
    assert "has changed" in run(mesh, "code.version()", capsys)
    assert (
        str(mesh.sync()).splitlines()[0] == f"[0-2] reloaded {module.name} (class Counter, function version)"
    )
    assert version(mesh) == ["v3"] * 3 and "has changed" not in run(mesh, "1", capsys)


def test_strict_refuses_and_off_says_nothing(
    mesh: Mesh, module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh.sync_mode = "strict"
    edit(module, "v1", "v2")
    with pytest.raises(
        ActorError, match=f"ranks 0-2: StaleCode: {module.name} has changed .* hasn't run.*%mesh sync"
    ):
        mesh.run("mark = 1")
    mesh.sync_mode = "off"
    assert "changed" not in run(mesh, "assert 'mark' not in globals(), 'it has run'", capsys)
    assert version(mesh) == ["v1"] * 3
    assert mesh.sync().is_done and version(mesh) == ["v2"] * 3


def test_a_module_that_raises_keeps_the_cell_from_running(mesh: Mesh, module: Path) -> None:
    mesh.sync_mode = "watch"
    edit(module, "RATE = 1", "RATE = 1 / 0")
    for _ in range(2):
        with pytest.raises(
            ActorError, match=r"(?s)ranks 0-2: StaleCode: .*ZeroDivisionError.*line 5, in <module>"
        ):
            mesh.run("broken_mark = 1")
    receipt = mesh.sync()
    assert not receipt.is_done and "ZeroDivisionError" in receipt.errors()
    edit(module, "RATE = 1 / 0", "RATE = 5")
    assert values(mesh, "assert 'broken_mark' not in globals()\ncode.RATE") == ["5"] * 3


def test_a_busy_rank_reloads_when_it_is_done(mesh: Mesh, module: Path, tmp_path: Path) -> None:
    submitted = mesh.submit(
        f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)", "1"
    )
    wait_until(lambda: mesh.status().ranks[1].state != "idle", "rank 1 runs the cell")
    edit(module, "v1", "v2")
    receipt = mesh.sync(timeout_s=0.5)
    assert receipt.busy == (1,) and not receipt.is_done
    assert "[1] busy: reloads as soon as what runs there has ended" in str(receipt)
    assert "[0,2] reloaded" in str(receipt)
    (tmp_path / "go").touch()
    submitted.get()
    mesh.sync_mode = "off"
    assert version(mesh) == ["v2"] * 3


def test_a_rank_that_is_started_anew_has_the_mode(mesh: Mesh, module: Path) -> None:
    mesh.sync_mode = "strict"
    mesh.restart("2")
    mesh.run(f"import {module.stem} as code", "2")
    edit(module, "v1", "v2")
    with pytest.raises(ActorError, match="ranks 0-2: StaleCode"):
        mesh.run("1")
    assert mesh.sync_mode == "strict"


def test_dry_run_and_chosen_paths(mesh: Mesh, module: Path, folder: Path) -> None:
    edit(module, "v1", "v2")
    assert str(mesh.sync(dry_run=True)).startswith(f"[0-2] {module.name}: would change Counter, version")
    assert str(mesh.sync(folder / "..", dry_run=True)).startswith("[0-2]")
    other = folder / "elsewhere"
    other.mkdir(exist_ok=True)
    assert "nothing to reload" in str(mesh.sync(other))
    assert version(mesh) == ["v1"] * 3
    with pytest.raises(MeshUsageError, match=r"there is no 'nowhere.py'"):
        mesh.sync("nowhere.py")
    with pytest.raises(MeshUsageError, match="warn, watch, strict, off, not 'always'"):
        mesh.sync_mode = "always"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["in place", "by rename"])
def test_no_cell_runs_old_code(mesh: Mesh, module: Path, how: str) -> None:
    """Each save is followed at once by a cell."""
    mesh.sync_mode = "watch"
    beside = module.with_suffix(".tmp")
    for n in range(NUM_SAVES):
        text = SOURCE.replace("v1", f"w{n % 10}")
        if how == "by rename":
            beside.write_text(text)
            os.replace(beside, module)
        else:
            module.write_text(text)
        assert version(mesh) == [f"w{n % 10}"] * 3, n
