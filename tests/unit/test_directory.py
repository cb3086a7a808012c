"""Directories for sockets: what dead host processes have left goes, what may be in use stays."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch_nb._client import launch
from monarch_nb._client.launch import controller_config
from monarch_nb._wire.directory import new_directory, private_directory, socket_root
from monarch_nb.exceptions import MeshStartError

LONG_AGO = 1_000_000_000


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        dir="/tmp"
    ) as base:  # pytest's own are too long for the path of a socket
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        assert socket_root() == f"{base}/monarch_nb"
        yield Path(base) / "monarch_nb"


@pytest.fixture
def listen(request: pytest.FixtureRequest) -> Callable[[str], socket.socket]:
    def begin(directory: str, age: int = LONG_AGO) -> socket.socket:
        os.mkdir(f"{directory}/h0")
        found = socket.socket(socket.AF_UNIX)
        request.addfinalizer(found.close)
        found.bind(f"{directory}/h0/p0")
        found.listen()
        os.utime(f"{directory}/h0/p0", (age, age))
        return found

    return begin


def test_one_that_lets_others_in_is_closed_and_what_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    private_directory(str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises((PermissionError, FileExistsError)):
        private_directory(str(tmp_path / "file"))


def test_a_new_one_is_for_its_user_only(root: Path) -> None:
    path = new_directory()
    assert os.path.dirname(path) == str(root)
    assert os.stat(path).st_mode & 0o777 == 0o700


def test_one_in_which_somebody_listens_stays(root: Path, listen: Callable[[str], socket.socket]) -> None:
    path = new_directory()
    listen(path)
    new_directory()
    assert os.path.exists(path)


def test_one_whose_host_process_is_dead_goes(root: Path, listen: Callable[[str], socket.socket]) -> None:
    path = new_directory()
    listen(path).close()
    other = new_directory()
    assert os.listdir(root) == [os.path.basename(other)]


def test_one_whose_host_process_is_being_started_stays(
    root: Path, listen: Callable[[str], socket.socket]
) -> None:
    empty, before_its_socket, young = new_directory(), new_directory(), new_directory()
    os.mkdir(f"{before_its_socket}/h0")
    listen(young, 2**32).close()
    new_directory()
    assert all(map(os.path.exists, (empty, before_its_socket, young)))


def test_one_of_another_machine_stays(root: Path, listen: Callable[[str], socket.socket]) -> None:
    path = root / "000000-01234567"
    path.mkdir()
    listen(str(path)).close()
    new_directory()
    assert path.exists()


def test_where_one_cant_be_written_to_another_is_taken(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root.parent.joinpath("monarch_nb").rmdir()
    root.parent.joinpath("monarch_nb").write_text("in the way")
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        assert socket_root() == f"{base}/monarch_nb-{os.getuid()}"
        os.rmdir(f"{base}/monarch_nb-{os.getuid()}")
        Path(base, f"monarch_nb-{os.getuid()}").write_text("in the way, too")
        with pytest.raises(
            OSError,
            match=r"set XDG_RUNTIME_DIR or TMPDIR to one\. .*/monarch_nb: File exists; .*: File exists",
        ):
            new_directory()
        with pytest.raises(
            MeshStartError, match="no mesh can be started here: there is no directory for sockets"
        ):
            controller_config()


def test_the_journals_are_for_their_user_only_whatever_the_umask_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "share" / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "run" / "jupyter"))
    before = os.umask(0)
    try:
        path = Path(launch.new_journal("x"))
        launch.runtime_directory()
    finally:
        os.umask(before)
    made = [
        path.parent,
        path.parent.parent,
        tmp_path / "share" / "jupyter",
        tmp_path / "share",
        tmp_path / "run",
        tmp_path / "run" / "jupyter",
    ]
    assert {str(p): oct(p.stat().st_mode & 0o777) for p in made} == {str(p): "0o700" for p in made}


def test_journals_that_were_open_to_others_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    (tmp_path / "monarch_nb" / "journals").mkdir(parents=True)
    for folder in ("monarch_nb", "monarch_nb/journals"):
        (tmp_path / folder).chmod(0o777)
    launch.new_journal("x")
    assert (tmp_path / "monarch_nb").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "monarch_nb" / "journals").stat().st_mode & 0o777 == 0o700
    assert tmp_path.stat().st_mode & 0o777 != 0o777
