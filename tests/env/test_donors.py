"""What a host has outside its store: found by content, copied, and nothing of its owner's is changed."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from environments import Made

from monarch_nb._sync.env.donors import donor_folders, found_in, take_from
from monarch_nb._sync.env.local import fill_store
from monarch_nb._sync.env.place import missing_content, place
from monarch_nb._sync.env.scan import Scanned
from monarch_nb._sync.env.store import Store


@pytest.fixture
def scanned(made: Made, cache_file: str) -> Scanned:
    return made.scan(cache_file)


def snapshot(folder: Path) -> dict[str, tuple[int, int, int, int, int]]:
    """Return all that a donor's owner could notice."""
    found = {}
    for path in folder.rglob("*"):
        s = path.lstat()
        found[str(path)] = (s.st_ino, s.st_mode, s.st_nlink, s.st_mtime_ns, s.st_size)
    return found


def test_content_comes_from_a_cache_of_uv_whatever_its_folders_are_called(
    made: Made, scanned: Scanned, tmp_path: Path
) -> None:
    cache = tmp_path / "uv" / "archive-v0" / "x81kd"
    shutil.copytree(made.site, cache)
    (cache / "alpha" / "data.txt").write_text("som3 data\n" * 100)  # of equal length, and not the same
    before = snapshot(cache)
    store = Store(str(tmp_path / "store"))
    folders = donor_folders({"UV_CACHE_DIR": str(tmp_path / "uv")}, ())
    assert str(cache.parent) in folders
    parts = list(scanned.parts.values())
    missing = missing_content(store, parts)
    there = found_in(parts, missing, [str(cache.parent)])
    assert there and missing_content(store, parts) == missing, "looking writes nothing"
    taken = take_from(store, parts, missing, [str(cache.parent)])
    assert taken == there
    assert missing_content(store, parts) == {s: n for s, n in missing.items() if s not in taken}
    by_path = {entry.path: entry.content for part in parts for entry in part.entries}
    init = next(content for path, content in by_path.items() if path.endswith("alpha/__init__.py"))
    data = next(content for path, content in by_path.items() if path.endswith("alpha/data.txt"))
    assert init in taken
    equal_elsewhere = (cache / "beta" / "data.txt").read_bytes()
    assert (data in taken) == (hashlib.sha256(equal_elsewhere).hexdigest() == data)
    assert snapshot(cache) == before
    store.close()


def test_a_prefix_of_donors_and_the_rest_is_as_any_other(
    made: Made, scanned: Scanned, tmp_path: Path
) -> None:
    store = Store(str(tmp_path / "store"))
    parts = list(scanned.parts.values())
    take_from(store, parts, missing_content(store, parts), [str(made.prefix)])
    sent = fill_store(store, scanned)
    assert 0 < sent < scanned.num_bytes
    prefix = place(store, scanned.manifest, lambda _: "")
    assert Made(Path(prefix.root) / "env").run("import alpha, beta; print(alpha.VERSION)") == "1.0"
    store.close()


def test_which_folders_may_have_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, env, store = tmp_path / "home", tmp_path / "conda" / "envs" / "a", tmp_path / "store"
    for folder in (home / ".conda" / "pkgs", env, store / "envs" / "0" / "env"):
        folder.mkdir(parents=True)
    (home / ".conda" / "environments.txt").write_text(f"{env}\n{tmp_path}/gone\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MONARCH_NB_STORE", str(store))
    found = donor_folders({}, ("/usr", "/", str(home), str(store / "envs" / "0" / "env"), str(env)))
    assert found == [str(env), str(home / ".conda" / "pkgs")], (
        "no system, no home, nothing of the store twice"
    )
    given = donor_folders({"CONDA_PKGS_DIRS": str(env)}, ())
    assert os.path.realpath(env) in given
