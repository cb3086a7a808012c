"""A mesh whose disk is full: cells run, show what they print, and end; it's said once, and once that it's over."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from own_meshes import own_mesh
from processes import wait_for_exit
from small_disk import SmallDisk, small_disk

from monarch_nb import mesh as meshes
from monarch_nb._client import session as sessions
from monarch_nb._journal import entries as journal_entries
from monarch_nb._journal.output import read_all
from monarch_nb.exceptions import RankTimeout
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

    def display(self, rank: int, content: dict[str, Any]) -> None: ...
    def ended(self, rank: int, ended: Mapping[str, Any]) -> None: ...
    def ended_well(self, seconds: Mapping[int, float]) -> None: ...

    def said(self, text: str) -> None:
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
        ended = {e["n"]: e.get("status") for e in journal_entries.read(directory) if e["kind"] == "cell"}
        assert list(ended.values()) == ["ok", "ok", "error", "interrupted", "interrupted", "ok"], "no cell's end is lost"
        failed = next(e for e in mesh.history() if e.source == "1 / 0")
        with pytest.raises(CellError, match=r"ZeroDivisionError.*not kept"):
            mesh.journal.replay(failed, Seen()).wait(T).raise_error()
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
        assert [e["kind"] for e in journal_entries.read(directory)] == ["start", "cell", "note", "cell"]
    assert b"there\n" in [r.data for _, r in read_all(directory)]


def test_who_comes_later_is_told(disk: SmallDisk, notices: Notices) -> None:
    with own_mesh("late", {"procs": 1}) as mesh:
        disk.fill()
        run(mesh, "print('x' * 100_000)")
        notices.wait()
        again = meshes.attach("late")
        notices.wait()
        assert notices.texts[0] == notices.texts[1]
        again._session.close()
        sessions.use(mesh._session)


def test_what_a_killed_home_leaves_on_a_full_disk_can_be_read(disk: SmallDisk, notices: Notices) -> None:
    before = sessions._current
    mesh = meshes.start("killed", {"procs": 1})
    directory, pid = mesh.status().journal, mesh.status().pid
    seen = Seen()
    mesh.submit("while True: print('y' * 1000)", watcher=seen)
    mesh._office.reader.take_over()
    assert seen.begun.wait(T)
    disk.fill()
    notices.wait()
    os.kill(pid, signal.SIGKILL)
    wait_for_exit(pid)
    assert {r.data.replace(b"y", b"").strip() for _, r in read_all(directory)} == {b""}
    assert [e["kind"] for e in journal_entries.read(directory)] == ["start", "cell"]
    mesh._session.close()
    sessions._current = before
