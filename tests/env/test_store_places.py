"""Where a store can be, and where it can't: said in one sentence, before anything is in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from environments import Made
from runtime import make_runtime
from test_sending import run

from monarch_nb._sync.env import suitable
from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.mounts import FileSystem
from monarch_nb._sync.env.store import Store

NEXT = "start the host with MONARCH_NB_STORE=DIRECTORY, which names one on a disk of its own"


@contextmanager
def mounted_apart(folder: Path) -> Iterator[None]:
    """Mount a directory upon itself: it's another mount then, which nothing can be linked or renamed into."""
    folder.mkdir(parents=True)
    done = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize(
    ("folder", "cannot"),
    [("envs", "link files"), ("objects", "rename files")],
    ids=["no links", "no renames"],
)
def test_a_file_system_without_what_is_needed_is_refused(tmp_path: Path, folder: str, cannot: str) -> None:
    root = tmp_path / "store"
    with mounted_apart(root / folder), pytest.raises(EnvironmentSyncError) as caught:
        Store(str(root))
    assert str(caught.value).startswith(f"the store {root} is on ")
    assert str(caught.value).endswith(f" that can't {cannot} there: {NEXT}")
    left = [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]
    assert left == [], "what was tried is removed"
    Store(str(root)).close()


def test_a_network_file_system_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suitable, "file_system_of", lambda _: FileSystem("nfs4", "home.lab:/export"))
    root = tmp_path / "store"
    with pytest.raises(EnvironmentSyncError) as caught:
        Store(str(root))
    why = "nfs4 (home.lab:/export), where neither links nor locks can be relied on"
    assert str(caught.value) == f"the store {root} is on {why}: {NEXT}"
    assert not root.exists()


def test_a_store_that_is_closed_twice_closes_nothing_of_others(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.close()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(16)]  # among them the numbers that it had
    store.close()
    for fd in others:
        os.close(fd)  # would say that it's closed


def test_what_a_process_that_has_died_had_tried_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    Store(str(root)).close()
    (root / "tmp" / "1-dead.lock").touch()
    for folder in ("objects", "envs"):
        (root / folder / "1-dead.probe").touch()
    Store(str(root)).close()
    assert not list(root.rglob("*.probe"))


def test_a_host_whose_store_cannot_be_is_named_and_the_mesh_is_as_before(tmp_path: Path) -> None:
    runtime: Made = make_runtime(tmp_path / "runtime" / "venv")
    root = tmp_path / "hosts" / "host1" / "store"
    with mounted_apart(root / "envs"):
        found = run(runtime, "without_links", tmp_path / "hosts")
    good, refused = found["first"]["problems"]
    assert (good, refused[: len(str(root)) + 10]) == ("", f"the store {root}")
    assert refused.endswith(f"can't link files there: {NEXT}")
    assert found["before"] == found["after"] == str(runtime.prefix)
    assert os.listdir(root / "tmp") == os.listdir(root / "envs") == []
