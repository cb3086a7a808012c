"""The workspace on hosts that don't see this machine's files: it's there, ranks run it, and edits follow."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from apart_hosts import files_of, hosts_apart, mesh_apart
from waiting import wait_until

from monarch_nb import _reload
from monarch_nb._display.card_html import render
from monarch_nb._protocol.programs import Status
from monarch_nb._reload import loaded as loaded_modules
from monarch_nb._sync import HostWorkspace, WorkspaceReceipt
from monarch_nb._sync import hosts as sync_hosts
from monarch_nb.actor.workspace import Workspace
from monarch_nb.exceptions import ActorError, MeshUsageError, StaleCode
from monarch_nb.job import ProcessJob
from monarch_nb.mesh import Mesh
from monarch_nb.mesh.drift import differences, sentences

MODEL = """
from monarch_nb.actor import Actor, endpoint

class Counter(Actor):
    def __init__(self):
        self.steps = 0

    @endpoint
    def step(self):
        self.steps += 1
        return "v1", self.steps

def version():
    return "v1"

def fails():
    raise ValueError("from the workspace")
"""


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "src").mkdir()
    (folder / "src" / "modelled.py").write_text(MODEL)
    (folder / "data.txt").write_text("beside the code")
    (folder / ".gitignore").write_text("*.big\nout/\n")
    (folder / ".env").write_text("SECRET=1")
    (folder / "weights.big").write_text("ignored")
    git(folder, "init", "-q")
    before = os.getcwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder / "src"))
    _reload.install()
    yield folder
    loaded_modules.uninstall()
    sys.path.remove(str(folder / "src"))
    os.chdir(before)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_NB_STORE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a package is installed that hosts don't have."""
    folder = tmp_path_factory.mktemp("own") / "site-packages"
    (folder / "onlyhere").mkdir(parents=True)
    (folder / "onlyhere" / "__init__.py").write_text("class Kept:\n    pass\n")
    (folder / "onlyhere-1.5.dist-info").mkdir()
    (folder / "onlyhere-1.5.dist-info" / "METADATA").write_text("Name: onlyhere\nVersion: 1.5\n")
    (folder / "onlyhere-1.5.dist-info" / "top_level.txt").write_text("onlyhere\n")
    (folder / "onlyhere-1.5.dist-info" / "RECORD").write_text("onlyhere/__init__.py,,\n")
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("onlyhere", None)


@pytest.fixture(scope="module")
def mesh(project: Path, store: Path, site: Path) -> Iterator[Mesh]:
    with mesh_apart("apart", {"gpus": 2}, 2, [project, store, site], size="4m") as found:
        yield found


@pytest.fixture
def synced(mesh: Mesh, project: Path) -> Iterator[Mesh]:
    mesh.sync()
    yield mesh
    mesh.sync_mode = "off"
    (project / "src" / "modelled.py").write_text(MODEL)
    mesh.sync()


def values(mesh: Mesh, source: str) -> list[str]:
    """Run a cell; return each rank's last value."""
    return [bundle["text/plain"].strip("'") for _, bundle in sorted(mesh.run(source).bundles.items())]


def workspace_of(receipt: object) -> WorkspaceReceipt:
    part = receipt.parts[0]  # type: ignore[attr-defined]
    assert isinstance(part, WorkspaceReceipt)
    return part


def host(receipt: object, index: int = 1) -> HostWorkspace:
    return workspace_of(receipt).hosts[index]


def copy_of(mesh: Mesh, receipt: object, index: int = 1) -> Path:
    """Return a host's copy of the workspace, as it's seen from here."""
    return Path(f"{files_of(mesh, index)}{host(receipt, index).folder}")


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_files_are_there_and_ranks_import_them_by_the_notebooks_paths(mesh: Mesh, project: Path) -> None:
    with pytest.raises(
        ActorError, match=r"(?s)No module named 'modelled'.*modelled is here \(.*modelled.py\).*%mesh sync"
    ):
        mesh.run("import modelled")
    dry = mesh.sync(dry_run=True)
    assert host(dry).outcome.added == (".gitignore", "data.txt", "src/modelled.py") and not dry.is_done
    assert host(dry).sent_bytes == sum((project / path).stat().st_size for path in host(dry).outcome.added)
    assert not copy_of(mesh, dry).exists()
    receipt = mesh.sync()
    assert receipt.is_done and host(receipt).outcome.added == (".gitignore", "data.txt", "src/modelled.py")
    text = str(receipt)
    assert (
        "[hosts 1-2] 3 new (.gitignore, data.txt, src/modelled.py)" in text
        and ".env (secret)" in text
        and "out/" not in text
    )
    assert "weights.big (.gitignore)" in text
    assert values(mesh, "import modelled as code; code.version()") == ["v1"] * 4
    assert values(mesh, "open('data.txt').read()") == ["beside the code"] * 4
    assert values(mesh, "code.__file__") != [str(project / "src" / "modelled.py")] * 4
    with pytest.raises(ActorError) as caught:
        mesh.run("code.fails()")
    assert f"{project}/src/modelled.py:17" in str(caught.value)
    assert 'raise ValueError("from the workspace")' in str(caught.value) and "ranks 0-3" in str(caught.value)
    copied = copy_of(mesh, receipt) / "src" / "modelled.py"
    assert copied.stat().st_mtime_ns == (project / "src" / "modelled.py").stat().st_mtime_ns
    assert sorted(os.listdir(copy_of(mesh, receipt))) == [".gitignore", "data.txt", "src"]


def test_a_package_that_hosts_lack_is_named_with_what_to_type(mesh: Mesh, site: Path) -> None:
    import onlyhere

    named = rf"(?s)No module named 'onlyhere'.*onlyhere 1.5 is installed here \({site}.*%mesh sync --env"
    with pytest.raises(ActorError, match=named):
        mesh.run("import onlyhere")
    with pytest.raises(ActorError, match=named):
        mesh.push({"kept": onlyhere.Kept()})
    with pytest.raises(ActorError) as caught:
        mesh.run("import json.missing")
    assert "%mesh sync --env" not in str(caught.value), "it isn't here, either"


def test_a_host_that_differs_is_said_at_the_start_and_stands_in_status_and_card(mesh: Mesh) -> None:
    """Both hosts lack a package; the controller's runs in this program's own environment."""
    wait_until(lambda: all(host.differs for host in mesh.status().hosts[1:]), "hosts are compared")
    text = "onlyhere isn't there: %mesh sync --env, or see %mesh diff --env --hosts"
    status = mesh.status()
    assert [host.differs for host in status.hosts] == ["", text, text]
    assert f"  hosts 1-2 differ: {text}\n" in status.text()
    assert "differs: onlyhere isn" in render(status)
    assert sentences(differences(mesh._session, [1, 2])) == [f"hosts 1-2 differ from here: {text}"]


def test_a_copy_of_the_workspace_that_is_behind_is_found(synced: Mesh, project: Path) -> None:
    assert not any("its copy" in text for text in differences(synced._session, [1, 2]).values())
    edit(project / "src" / "modelled.py", "v1", "v2")
    found = differences(synced._session, [1, 2])
    text = f"its copy of {project} differs from the notebook's: %mesh sync"
    assert [found[host].rpartition("; ")[2] for host in (1, 2)] == [text] * 2


def test_packages_that_hosts_have_otherwise_are_listed_by_host(mesh: Mesh) -> None:
    found = mesh.diff_hosts()
    assert found and not found.problems
    assert [(each.name, dict(each.groups)) for each in found.packages] == [
        ("onlyhere", {("1", "2"): "not there", ("here",): "1.5"})
    ]
    text = found.text()
    assert re.search(r"onlyhere +hosts 1-2 +not there\n +here +1.5\n", text), text
    assert f"hosts 1-2: 1 of {found.num_packages} packages differs" in text and "%mesh sync --env" in text
    assert "onlyhere" in found._repr_html_()
    rows = mesh._session.request(Status()).procs
    assert [row for row in rows if "agents" in row.group and row.state == "running"] == []


def test_an_edit_is_sent_and_reloaded_and_a_deleted_file_goes(synced: Mesh, project: Path) -> None:
    mesh = synced
    import modelled

    counter = mesh.spawn("counted", modelled.Counter)
    assert set(counter.step.call().get().values()) == {("v1", 1)}
    mesh.run("import modelled as code")
    (project / "old.txt").write_text("to go")
    mesh.sync()
    (project / "old.txt").unlink()
    edit(project / "src" / "modelled.py", "v1", "v2")
    receipt = mesh.sync()
    done = host(receipt).outcome
    assert (done.added, done.changed, done.deleted) == ((), ("src/modelled.py",), ("old.txt",))
    assert "reloaded modelled.py (class Counter, function version)" in str(receipt)
    assert not (copy_of(mesh, receipt) / "old.txt").exists()
    assert values(mesh, "code.version()") == ["v2"] * 4
    assert set(counter.step.call().get().values()) == {("v2", 2)}
    counter.stop().get()
    again = mesh.sync()
    assert again.is_done and host(again).sent_bytes == 0 and "nothing to send: it has all files" in str(again)


def test_watched_files_go_before_each_cell(synced: Mesh, project: Path) -> None:
    mesh = synced
    mesh.sync_mode = "watch"
    mesh.run("import modelled as code")
    for n in range(5):
        edit(project / "src" / "modelled.py", f"v{n or 1}", f"v{n + 1}")
        assert values(mesh, "code.version()") == [f"v{n + 1}"] * 4
    (project / "new.py").write_text("x = 1")
    assert values(mesh, "import os; os.path.exists('new.py')") == ["True"] * 4
    (project / "new.py").rename(project / "newer.py")
    assert (
        values(mesh, "import os; [os.path.exists(p) for p in ('new.py', 'newer.py')]")
        == ["[False, True]"] * 4
    )
    (project / "newer.py").unlink()
    assert values(mesh, "os.path.exists('newer.py')") == ["False"] * 4


def test_said_or_refused_when_hosts_have_older_files(
    synced: Mesh, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh = synced
    mesh.sync_mode = "warn"
    (project / "data.txt").write_text("newer")
    mesh.run("1")
    assert (
        "data.txt has changed here since the other hosts were sent it. Next: %mesh sync"
        in capsys.readouterr().err
    )
    mesh.run("1")
    assert "data.txt" not in capsys.readouterr().err
    mesh.sync_mode = "strict"
    with pytest.raises(StaleCode, match=r"data.txt has changed here .* hasn't run"):
        mesh.run("ran = 1")
    mesh.sync_mode = "off"
    assert values(mesh, "'ran' in globals()") == ["False"] * 4
    assert "data.txt" not in capsys.readouterr().err
    (project / "data.txt").write_text("beside the code")


def test_what_ranks_have_changed_there_is_kept_and_said(synced: Mesh, project: Path) -> None:
    mesh = synced
    mesh.run("open('data.txt', 'a').write(' and a rank'); open('results.txt', 'w').write('mine')", "0")
    mesh.sync_mode = "watch"
    (project / "data.txt").write_text("edited here")
    assert values(mesh, "open('data.txt').read()") == ["edited here"] * 4
    receipt = mesh.sync()
    there = copy_of(mesh, receipt)
    assert (there / "data.txt.theirs").read_text() == "beside the code and a rank"
    assert (there / "results.txt").read_text() == "mine", "what sync hasn't placed stays"
    mesh.run("open('data.txt', 'a').write(' again')", "0")
    receipt = mesh.sync()
    assert ("data.txt", "data.txt.theirs.2") in host(receipt).outcome.theirs and not host(
        receipt, 2
    ).outcome.theirs
    assert "[host 1] data.txt was changed there: its content is kept as data.txt.theirs.2" in str(receipt)
    (project / "data.txt").write_text("beside the code")


def test_nothing_is_written_through_a_link_that_a_rank_has_put_there(
    synced: Mesh, project: Path, tmp_path: Path
) -> None:
    mesh = synced
    (project / "deep").mkdir()
    (project / "deep" / "file.txt").write_text("one")
    mesh.sync()
    mesh.run(f"import os, shutil; shutil.rmtree('deep'); os.symlink({str(tmp_path)!r}, 'deep')", "0")
    (project / "deep" / "file.txt").write_text("two")
    receipt = mesh.sync()
    assert not receipt.is_done and os.listdir(tmp_path) == []
    assert f"deep is a link to {tmp_path} there, not a folder: nothing is written through it" in str(receipt)
    mesh.sync_mode = "watch"
    with pytest.raises(StaleCode, match="deep is a link"):
        mesh.run("1")
    mesh.sync_mode = "off"
    mesh.run("os.unlink('deep')", "0")
    assert mesh.sync().is_done
    shutil.rmtree(project / "deep")
    assert host(mesh.sync()).outcome.deleted == ("deep/file.txt",)
    assert values(mesh, "import os; os.path.exists('deep')") == ["False"] * 4


def test_a_rank_that_is_started_anew_finds_the_files(synced: Mesh, project: Path) -> None:
    synced.restart("1")
    assert (
        values(synced, "import modelled, os; modelled.version(), os.path.basename(os.getcwd())[:8]")
        == [f"('v1', '{project.name}')"] * 4
    )


def test_a_breakpoint_is_set_at_the_notebooks_path(synced: Mesh, project: Path) -> None:
    mesh = synced
    mesh.run("import modelled as code")
    answers = mesh.debugger().break_at(f"{project}/src/modelled.py", 14)
    assert set(answers.values()) == {f"breakpoint at {project}/src/modelled.py:14"}
    run = mesh.submit("code.version()")
    wait_until(lambda: len(mesh.debugger().stops()) == 4, "all ranks stop")
    stops = mesh.debugger().stops()
    mesh.debugger().clear_breaks()
    mesh.debugger().send(stops, "continue")
    run.get()
    assert {(stop.file, stop.line) for stop in stops} == {(f"{project}/src/modelled.py", 14)}


def test_a_full_disk_is_said_and_the_next_sync_goes_on(synced: Mesh, project: Path) -> None:
    mesh = synced
    big = os.urandom(1 << 20)
    for n in range(3):
        (project / f"part{n}.bin").write_bytes(big + bytes([n]))
    (project / "whole.bin").write_bytes(os.urandom(6 << 20))
    receipt = mesh.sync()
    assert not receipt.is_done and "has no room: 9 MiB are needed" in str(receipt)
    assert values(mesh, "import modelled; modelled.version()") == ["v1"] * 4
    mesh.run("open('filler', 'wb').write(bytes(2 << 20))", "0")
    (project / "whole.bin").unlink()
    receipt = mesh.sync()
    assert "No space left on device" in str(receipt) or "has no room" in str(receipt)
    assert not host(receipt).is_done and host(receipt, 2).is_done
    mesh.run("import os; os.unlink('filler')", "0")
    receipt = mesh.sync()
    assert receipt.is_done, str(receipt)
    assert host(receipt).sent_bytes <= 3 * (len(big) + 1)
    for path in project.glob("part*.bin"):
        path.unlink()
    mesh.sync()


def test_what_can_not_be_meant(synced: Mesh, project: Path) -> None:
    with pytest.raises(MeshUsageError, match="there is no 'nowhere'"):
        synced.sync("nowhere")
    (project / "huge.bin").touch()
    os.truncate(project / "huge.bin", 2 << 30)
    receipt = synced.sync(dry_run=True)
    assert "huge.bin (2 GiB: --include)" in str(receipt)
    (project / "huge.bin").unlink()


def test_monarchs_way_with_hosts_of_a_job(project: Path, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "jobbed.py").write_text("def where():\n    return __file__\n")
    sys.path.insert(0, str(folder))
    with hosts_apart([folder, store]):
        job = ProcessJob({"hosts": 1})
        hosts = job.state().hosts
        hosts.initialized.get(60)
    try:
        early = hosts.spawn_procs({"gpus": 2})
        early.initialized.get(60)
        receipt = asyncio.run(hosts.sync_workspace(Workspace(dirs=[folder]), auto_reload=True))
        assert receipt.is_done and len(receipt.ranks) == 2, str(receipt)
        late = hosts.spawn_procs()
        import jobbed

        there = {*early.execute(jobbed.where).get(60).values(), late.execute(jobbed.where).get(60).item()}
        assert len(there) == 1 and there != {str(folder / "jobbed.py")}
        (folder / "jobbed.py").write_text("def where():\n    return 'edited'\n")
        asyncio.run(hosts.sync_workspace(Workspace(dirs=[folder]), auto_reload=True))
        assert set(early.execute(jobbed.where).get(60).values()) == {"edited"}
        with pytest.raises(MeshUsageError, match="there is no folder /nowhere"):
            asyncio.run(hosts.sync_workspace(Workspace(dirs=["/nowhere"])))
        with pytest.raises(MeshUsageError, match="%mesh sync --env"):
            asyncio.run(hosts.sync_workspace(Workspace(dirs=[folder]), conda=True))
    finally:
        sys.path.remove(str(folder))
        job.kill()


SCRIPT = """
import asyncio, sys
from pathlib import Path

import beside
from monarch_nb.actor import this_host
from monarch_nb.actor.workspace import Workspace

if __name__ == "__main__":
    hosts = this_host()
    procs = hosts.spawn_procs({"gpus": 1})
    print(beside.version(), procs.execute(beside.version).get(60).item())
    Path(beside.__file__).write_text("def version(): return 'new'")
    receipt = asyncio.run(hosts.sync_workspace(Workspace(dirs=[Path.cwd()]), auto_reload=True))
    print(beside.version(), procs.execute(beside.version).get(60).item())
    print(receipt)
"""


def test_a_program_of_this_host_reloads_what_its_ranks_do(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def version(): return 'old'")
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert ran.stdout.splitlines()[:2] == ["old old", "new new"], ran.stdout + ran.stderr


def test_a_host_that_shares_the_files_is_sent_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ProcessJob({"hosts": 1})
    hosts = job.state().hosts
    hosts.initialized.get(60)
    receipt = asyncio.run(hosts.sync_workspace(Workspace(dirs=[project])))
    [host] = workspace_of(receipt).hosts.values()
    assert host.is_shared and receipt.is_done and "by a shared file system: nothing sent" in str(receipt)
    job.kill()


def num_complete(disk: Path) -> int:
    """Return how many contents have come all the way, the manifest among them."""
    return sum(not path.name.endswith(".part") for path in disk.glob("work/*.new-*/*"))


def test_a_killed_host_is_named_and_what_had_arrived_isnt_sent_again(
    project: Path, tmp_path: Path, unhandled: object
) -> None:
    """The host process is killed when half of the files have come; another one takes its place, with the
    same disk.
    """
    folder, disk = tmp_path / "files", tmp_path / "disk"
    folder.mkdir()
    disk.mkdir()
    for n in range(20):
        (folder / f"f{n}.bin").write_bytes(os.urandom(300_000))
    with pytest.MonkeyPatch.context() as patch, hosts_apart([folder]):
        patch.setenv("MONARCH_NB_STORE", str(disk))
        job = ProcessJob({"hosts": 1}, env={"MONARCH_NB_STORE": str(disk)})
        hosts = job.state().hosts
        hosts.initialized.get(60)
    killed: list[object] = []
    begun: list[object] = []

    def pieces(workspace: object, entry: object) -> Iterator[bytes]:
        begun.append(entry)
        if len(begun) == 13:
            wait_until(lambda: num_complete(disk) > 10, "half of the files have come")
            killed.append(job._processes[0].kill())
        yield from real_pieces(workspace, entry)  # type: ignore[arg-type]

    real_pieces = sync_hosts._pieces
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync_hosts, "_pieces", pieces)
        receipt = asyncio.run(hosts.sync_workspace(Workspace(dirs=[folder])))
    assert killed and not receipt.is_done
    assert "what has arrived there stays, and is not sent again" in str(receipt)
    job.kill()
    with hosts_apart([folder]):
        job = ProcessJob({"hosts": 1}, env={"MONARCH_NB_STORE": str(disk)})
        hosts = job.state().hosts
        hosts.initialized.get(60)
    receipt = asyncio.run(hosts.sync_workspace(Workspace(dirs=[folder])))
    [host] = workspace_of(receipt).hosts.values()
    assert receipt.is_done and host.sent_bytes <= 10 * 300_000 and len(host.outcome.added) == 20
    job.kill()
