"""A mesh whose disk is full: cells run, show what they print, and end; it's said once, and once that it's
over.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import kill
from own_meshes import own_mesh
from processes import wait_for_exit
from small_disk import SmallDisk, small_disk

from monarch_nb import mesh as meshes
from monarch_nb._client import session as sessions
from monarch_nb._journal import entries as journal_entries
from monarch_nb._journal.output import read_all
from monarch_nb._protocol.shown import CellEnd, Shown
from monarch_nb.actor import Actor, Checkpointed, ProcMesh, endpoint, this_host
from monarch_nb.exceptions import ActorError, RankTimeout
from monarch_nb.mesh import Mesh
from monarch_nb.mesh.cell_run import CellError

T = 60


class Seen:
    """What a cell shows."""

    def __init__(self) -> None:
        self.shown = ""
        self.sentences: list[str] = []
        self.begun = threading.Event()

    def text(self, rank: int, stream: str, text: str) -> None:
        self.shown += text
        self.begun.set()

    def display(self, rank: int, shown: Shown) -> None: ...
    def ended(self, rank: int, end: CellEnd) -> None: ...
    def ended_well(self, seconds: Mapping[int, float]) -> None: ...

    def waits(self, text: str) -> None: ...
    def message(self, text: str) -> None:
        self.sentences.append(text)


class Notices:
    """What this program is told without having asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        self._come = threading.Semaphore(0)
        monkeypatch.setattr(sessions, "_show_notice", self._take)

    def _take(self, what: str) -> None:
        self.texts.append(what)
        self._come.release()

    def wait(self) -> str:
        assert self._come.acquire(timeout=T)
        return self.texts[-1]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as found:
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(found.path / "data"))
        yield found


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> Notices:
    return Notices(monkeypatch)


def run(mesh: Mesh, source: str, **options: Any) -> str:
    seen = Seen()
    mesh.submit(source, watcher=seen, **options).wait(T).raise_error()
    return seen.shown


def test_cells_go_on_without_a_journal_and_it_comes_back(disk: SmallDisk, notices: Notices) -> None:
    with own_mesh("crowded", {"procs": 2}) as mesh:
        assert "before" in run(mesh, "print('before')")
        disk.fill()
        lines = [f"line {i}" for i in range(2000)]
        shown = run(mesh, "for i in range(2000): print('line', i)", ranks="0")
        assert shown.split("\n")[:-1] == lines, "output reaches the screen, in order, though it isn't kept"
        assert "no space left on the disk at" in notices.wait()
        assert str(disk.path) in notices.texts[0]
        with pytest.raises(CellError, match="ZeroDivisionError"):
            run(mesh, "1 / 0")
        with pytest.raises(RankTimeout, match="did not end within 1 s"):
            run(mesh, "import time\nwhile True: time.sleep(0.01)", timeout=1.0)
        endless = mesh.submit("print('on', flush=True)\nwhile True: time.sleep(0.01)")
        endless.wait_for_number(T)
        endless.interrupt()
        with pytest.raises(KeyboardInterrupt):
            endless.wait(T).raise_error()
        assert len(notices.texts) == 1, "it's said once"
        assert "no space left" in mesh.status().journal_trouble
        assert "no space left" in mesh.history().text()
        disk.free()
        assert "is written again" in notices.wait()
        assert not mesh.status().journal_trouble
        assert "after" in run(mesh, "print('after')")
        directory = mesh.status().journal
        failed = next(e for e in mesh.history() if e.source == "1 / 0")
        with pytest.raises(CellError, match=r"ZeroDivisionError.*not kept"):
            mesh.journal.replay(failed, Seen()).wait(T).raise_error()
    ended = {e.n: e.status for e in journal_entries.read(directory) if e.kind == "cell"}
    assert list(ended.values()) == ["ok", "ok", "error", "interrupted", "interrupted", "ok"], (
        "no cell's end is lost"
    )
    kept = b"".join(r.data for _, r in read_all(directory))
    assert b"before" in kept
    assert b"after" in kept
    assert kept.count(b"were not kept: no space left") == 1
    assert len(notices.texts) == 2


def test_a_mesh_starts_with_a_full_disk_and_moves_there_later(disk: SmallDisk, notices: Notices) -> None:
    disk.fill()
    with own_mesh("early", {"procs": 1}) as mesh:
        assert "no space left" in notices.wait()
        assert run(mesh, "print('here')") == "here\n"
        disk.free()
        assert "is written again" in notices.wait()
        run(mesh, "print('there')")
        directory = mesh.status().journal
        assert directory.startswith(str(disk.path))
        assert [e.kind for e in journal_entries.read(directory)] == ["start", "cell", "note", "cell"]
    assert b"there\n" in [r.data for _, r in read_all(directory)]


def test_who_comes_later_is_told(disk: SmallDisk, notices: Notices) -> None:
    with own_mesh("late", {"procs": 1}) as mesh:
        disk.fill()
        run(mesh, "print('x' * 100_000)")
        notices.wait()
        attach = "from monarch_nb import mesh; mesh.attach('late').run('pass')"
        later = subprocess.run(
            [sys.executable, "-c", attach], capture_output=True, text=True, timeout=T, check=True
        )
        assert notices.texts[0] in later.stderr


def test_what_a_killed_controller_leaves_on_a_full_disk_can_be_read(
    disk: SmallDisk, notices: Notices
) -> None:
    before = sessions._current
    mesh = meshes.start("killed", {"procs": 1})
    directory, pid = mesh.status().journal, mesh.status().pid
    seen = Seen()
    mesh.submit("while True: print('y' * 1000)", watcher=seen)
    mesh._transport.reader.ensure_reading()
    assert seen.begun.wait(T)
    disk.fill()
    notices.wait()
    os.kill(pid, signal.SIGKILL)
    wait_for_exit(pid)
    assert {r.data.replace(b"y", b"").strip() for _, r in read_all(directory)} == {b""}
    assert [e.kind for e in journal_entries.read(directory)] == ["start", "cell"]
    mesh._session.close()
    sessions._current = before


class Keeper(Actor):
    def __init__(self, value: int) -> None:
        self.value = value

    @endpoint
    def get(self) -> int:
        return self.value


def test_with_a_full_runtime_directory_all_works_that_needs_no_disk(
    tmp_path: Path, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets take no room. Ranks have no page there and no file for their stacks, and what makes actors
    again is kept in memory.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as base, small_disk(Path(base) / "r") as disk:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(disk.path))
        disk.fill()
        with own_mesh("homeless", {"procs": 2}) as mesh:
            assert mesh._session.transport.directory.startswith(str(disk.path))
            assert run(mesh, "print('here')", ranks="1") == "here\n"
            keeper: Any = mesh.spawn("keeper", Keeper, 42)
            assert list(keeper.get.call().get(T).values()) == [42, 42]
            kill(mesh, 1)
            assert not mesh.heal().problems
            assert list(keeper.get.call().get(T).values()) == [42, 42]
            assert mesh.status().ranks_by_state() == {"idle": "0-1"}
            disk.free()


TIGHT = """
from monarch_nb import mesh as meshes
from monarch_nb.actor import Actor, endpoint

class Keeper(Actor):
    def __init__(self, value):
        self.value = value
    @endpoint
    def get(self):
        return self.value

mesh = meshes.start("tight", {"procs": 2})
try:
    keeper = mesh.spawn("keeper", Keeper, b"x" * 4_000_000)
    mesh.profile("import tempfile; tempfile.TemporaryFile().write(b'x' * 100_000)")
    mesh.submit("import os\\nif rank: os._exit(3)").wait(60)
    print(mesh.heal().ranks, [len(value) for value in keeper.get.call().get(60).values()])
    print(mesh.resize(procs=3).messages)
finally:
    mesh.stop().get(60)
"""


def test_a_full_tmpdir_is_passed_over(tmp_path: Path) -> None:
    """Sockets, what actors are made of again, profiles and files of the user's go where there is room."""
    with small_disk(tmp_path / "disk") as disk:
        disk.fill()
        environment = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"}
        found = subprocess.run(
            [sys.executable, "-c", TIGHT],
            capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path,
            env={**environment, "TMPDIR": str(disk.path)},
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        assert "(1,) [4000000, 4000000]" in found.stdout
        assert "the mesh is now procs=3" in found.stdout
        assert "Traceback" not in found.stderr


def test_no_shared_memory_is_an_error_where_it_was_wanted(procs: ProcMesh) -> None:
    """A file of that size can't be had, in memory neither: the caller hears, and everybody lives."""
    keeper: Any = procs.spawn("keeper", Keeper, torch.zeros(1 << 20))
    keeper.initialized.get(T)
    procs.execute(_limit_files, 1 << 20).get(T)
    with pytest.raises(ActorError, match=r"MemoryError: no 4,194,304 bytes of shared memory: File too large"):
        keeper.get.call().get(T)
    with pytest.raises(ActorError, match=r"MemoryError: no 8,388,608 bytes of shared memory"):
        procs.execute(torch.zeros, 2 << 20).get(T)
    assert list(procs.execute(os.getpid).get(T).values())


PROGRAM = """
import torch
from monarch_nb.actor import this_host
from monarch_nb.rdma import RDMABuffer, empty

def look(buffer, tensor):
    there = torch.zeros(1 << 22)
    buffer.read_into(there).get()
    return there.sum().item(), tensor.sum().item(), torch.ones(1 << 22)

procs = this_host().spawn_procs({"gpus": 2})
ours = empty(1 << 22)
ours.fill_(2.0)
for a, b, tensor in procs.execute(look, RDMABuffer(ours), torch.ones(1 << 22)).get(60).values():
    print(a / (1 << 22), b / (1 << 22), tensor.sum().item() / (1 << 22))
"""


def test_a_full_dev_shm_is_not_needed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "disk").mkdir()
    script = (
        "mount -t tmpfs -o size=64k tmpfs /dev/shm && head -c 64k /dev/zero > /dev/shm/stuffing && exec "
        f"{sys.executable} {program}"
    )
    found = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    if "unshare" in found.stderr or "mount" in found.stderr:
        pytest.skip(f"no file system can be mounted here: {found.stderr.strip()}")
    assert found.stdout == "2.0 1.0 1.0\n" * 2, found.stderr


class Saver(Checkpointed):
    """Each rank has a megabyte of state."""

    def __init__(self, folder: str, every: int = 0) -> None:
        self.checkpoint_dir = folder
        self.checkpoint_every = every
        self.numbers = torch.arange(20_000, dtype=torch.int64)

    def state_dict(self) -> Any:
        return {"numbers": self.numbers}

    def load_state_dict(self, state: Any) -> None:
        self.numbers = state["numbers"]

    @endpoint
    def add(self) -> None:
        self.numbers += 1


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 2})
    mesh.initialized.get(T)
    yield mesh
    mesh.stop(grace_s=0.0).get(T)


def test_a_checkpoint_that_cant_be_written_is_the_callers_error(procs: ProcMesh, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        saver: Any = procs.spawn("saver", Saver, str(disk.path))
        disk.fill()
        for _ in range(2):
            with pytest.raises(
                ActorError, match=r"CheckpointError: .* after 0 calls: .*no space left on the disk at"
            ) as error:
                saver.checkpoint.call().get(T)
            assert str(disk.path) in str(error.value)
        saver.add.call().get(T)  # now both have answered: the first failure is told at once
        (folder,) = [p for p in disk.path.iterdir() if p.is_dir()]
        assert list(folder.iterdir()) == [], "nothing broken is left"
        disk.free()
        good = Path(saver.checkpoint.call().get(T).item(gpus=0))
        disk.fill()
        saver.add.call().get(T)
        with pytest.raises(ActorError, match="no space left"):
            saver.checkpoint.call().get(T)
        saver.add.call().get(T)
        assert [p.name for p in folder.iterdir()] == [good.name], "the last good one is still there"


def test_one_rank_whose_disk_is_full_keeps_nobody_waiting(procs: ProcMesh, tmp_path: Path) -> None:
    """The other rank writes elsewhere: it hears at once, and not by a time-out."""
    procs.flatten("rank").slice(rank=1).execute(_limit_files, 50_000).get(T)
    saver: Any = procs.spawn("saver", Saver, str(tmp_path))
    with pytest.raises(ActorError, match=r"CheckpointError.*rank 1: File too large"):
        saver.checkpoint.call().get(T)
    (folder,) = tmp_path.iterdir()
    assert list(folder.iterdir()) == []


def test_a_rank_that_writes_after_another_has_given_up_says_that_ones_reason(
    procs: ProcMesh, tmp_path: Path
) -> None:
    """What was written is removed then: it isn't that which can't be written to."""
    flat = procs.flatten("rank")
    flat.slice(rank=1).execute(_limit_files, 50_000).get(T)
    flat.slice(rank=0).execute(_write_late).get(T)
    saver: Any = procs.spawn("saver", Saver, str(tmp_path))
    with pytest.raises(ActorError, match=r"CheckpointError.*rank 1: File too large") as caught:
        saver.checkpoint.call().get(T)
    assert "No such file" not in str(caught.value)


def _write_late() -> None:
    """Have this rank write a checkpoint once its folder is gone."""
    from torch.distributed.checkpoint import FileSystemWriter

    write = FileSystemWriter.write_data

    def late(self: Any, *args: Any) -> Any:
        while Path(self.path).is_dir():
            time.sleep(0.01)
        FileSystemWriter.write_data = write
        return write(self, *args)

    FileSystemWriter.write_data = late


def _limit_files(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def test_a_save_behind_the_scenes_that_fails_is_told_once(
    procs: ProcMesh, tmp_path: Path, notices: Notices
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        disk.fill()
        saver: Any = procs.spawn("saver", Saver, str(disk.path), 1)
        assert "the checkpoint of actor 'saver' after 0 calls could not be written: rank" in notices.wait()
        assert "no space left" in notices.texts[0]
        for _ in range(3):
            saver.add.call().get(T)
        disk.free()
        saver.checkpoint.call().get(T)
        assert len(notices.texts) == 1
