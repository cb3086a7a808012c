"""Files that are edited in an environment become its next version without a look at all others, here and on
hosts.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from environments import Made, bare, make_venv

from monarch_nb._sync.env import place as placing
from monarch_nb._sync.env.clean import clean
from monarch_nb._sync.env.edits import Edit, after_edits
from monarch_nb._sync.env.local import export, fill_store
from monarch_nb._sync.env.manifest import FILE, Change, Entry, ManifestError
from monarch_nb._sync.env.place import Prefix, find_prefix, hold, prefix_root, settle
from monarch_nb._sync.env.spare import make_spare, place_changed
from monarch_nb._sync.env.store import Store


@pytest.fixture
def own(tmp_path: Path) -> Made:
    """An environment of this test's own."""
    made = make_venv(tmp_path / "venv")
    made.install(made.wheel(tmp_path, "alpha", "1.0", script=True), made.wheel(tmp_path, "beta", "2.0"))
    made.run("import alpha, beta")  # byte code
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(str(tmp_path / "host"))
    yield found
    found.close()


def write_in_place(path: Path) -> None:
    path.write_text("VERSION = 'edited'\n")


def write_by_rename(path: Path) -> None:
    beside = path.with_name("4913")
    beside.write_text("VERSION = 'renamed'\n")
    beside.rename(path)


def make_executable(path: Path) -> None:
    path.chmod(0o755)


@pytest.mark.parametrize("edit", [write_in_place, write_by_rename, make_executable])
@pytest.mark.parametrize("name", ["alpha/__init__.py", "alpha/data.txt", "../../../bin/alpha-script"])
def test_it_is_what_a_look_at_everything_finds(
    own: Made, cache_file: str, edit: Callable[[Path], None], name: str
) -> None:
    before, path = own.scan(cache_file), (own.site / name).resolve()
    edit(path)
    found = after_edits(before, {str(path), str(path.with_name("4913"))})
    assert found is not None
    whole = own.scan(cache_file)
    assert found.scanned.manifest.text == whole.manifest.text
    assert {part: each.text for part, each in found.scanned.parts.items()} == {
        part: each.text for part, each in whole.parts.items()
    }
    assert found.scanned.edited == whole.edited


def test_edits_follow_one_another(own: Made, cache_file: str) -> None:
    scanned, path = own.scan(cache_file), own.site / "alpha" / "__init__.py"
    for version in range(3):
        path.write_text(f"VERSION = 'edit {version}'\n")
        found = after_edits(scanned, {str(path)})
        assert found is not None
        scanned = found.scanned
    assert scanned.manifest.id == own.scan(cache_file).manifest.id


def add_module(site: Path) -> Path:
    (site / "fresh.py").touch()
    return site / "fresh.py"


def add_folder(site: Path) -> Path:
    (site / "fresh").mkdir()
    return site / "fresh"


def remove_file(site: Path) -> Path:
    (site / "alpha" / "data.txt").unlink()
    return site / "alpha" / "data.txt"


def put_link(site: Path) -> Path:
    remove_file(site).symlink_to("__init__.py")
    return site / "alpha" / "data.txt"


def edit_metadata(site: Path) -> Path:
    path = site / "alpha-1.0.dist-info" / "METADATA"
    path.write_text(path.read_text().replace("1.0", "1.1"))
    return path


@pytest.mark.parametrize("change", [add_module, add_folder, remove_file, put_link, edit_metadata])
def test_what_is_more_than_an_edit_is_looked_at_as_a_whole(
    own: Made, cache_file: str, change: Callable[[Path], Path]
) -> None:
    scanned = own.scan(cache_file)
    assert after_edits(scanned, {str(change(own.site))}) is None


# --- on a host


@pytest.fixture
def edited(own: Made, cache_file: str, store: Store) -> Edit:
    """An environment that is in a store, and has been edited since; the store has the new content."""
    before = own.scan(cache_file)
    export(store.root, before)
    path = own.site / "alpha" / "__init__.py"
    path.write_text("VERSION = 'edited'\n")
    found = after_edits(before, {str(path)})
    assert found is not None
    fill_store(store, found.scanned)
    return found


def no_test(prefix: Prefix) -> str:
    return ""


def placed(store: Store, edit: Edit) -> Prefix | None:
    return place_changed(store, edit.scanned.manifest, edit.before, edit.changes, no_test)


def tree(root: str) -> dict[str, tuple[int, str | bytes]]:
    """Return mode and content of all that is below a folder; with its own path taken out."""
    found = {}
    for folder, names, files in os.walk(root):
        for name in (*files, *(n for n in names if os.path.islink(f"{folder}/{n}"))):
            path = f"{folder}/{name}"
            is_link = os.path.islink(path)
            content = os.readlink(path) if is_link else Path(path).read_bytes().replace(root.encode(), b"@")
            found[os.path.relpath(path, root)] = (os.lstat(path).st_mode, content)
    return found


def test_a_spare_becomes_the_prefix_that_would_have_been_made_of_everything(
    edited: Edit, store: Store, tmp_path: Path
) -> None:
    make_spare(store, edited.before)
    prefix = placed(store, edited)
    assert prefix is not None and prefix == find_prefix(store.root, edited.scanned.manifest.id)
    whole = export(str(tmp_path / "whole"), edited.scanned)
    assert tree(prefix.root) == tree(whole.root)
    said = subprocess.check_output(
        [prefix.python, "-B", "-c", "import alpha; print(alpha.VERSION)"], text=True, env=bare()
    )
    assert said == "edited\n"
    old = find_prefix(store.root, edited.before)
    assert old is not None, "who runs in the old one keeps it"
    assert "1.0" in Path(old.root, own_file(edited)).read_text()


def own_file(edit: Edit) -> str:
    return next(c.path for several in edit.changes.values() for c in several if c.path.endswith(".py"))


def test_without_a_spare_nothing_is_made_of_it(edited: Edit, store: Store) -> None:
    assert placed(store, edited) is None
    assert find_prefix(store.root, edited.scanned.manifest.id) is None


def test_a_spare_is_used_once(edited: Edit, store: Store) -> None:
    make_spare(store, edited.before)
    assert placed(store, edited) is not None
    assert not any("." not in name and name != "lock" for name in os.listdir(f"{store.root}/spare"))


def test_changes_that_lead_elsewhere_are_refused(edited: Edit, store: Store) -> None:
    make_spare(store, edited.before)
    part, (change, *rest) = next(iter(edited.changes.items()))
    assert change.entry is not None
    wrong = change.entry._replace(size=change.entry.size + 1)
    outside = "env/../../outside"
    for changes in (
        {part: (Change(change.path, wrong), *rest)},
        {part: (*rest,)},
        {part: (Change(outside, Entry(outside, FILE, 0, "0" * 64)),)},
        {part: (Change(change.path, change.entry._replace(path=outside)),)},
    ):
        with pytest.raises(ManifestError):
            place_changed(store, edited.scanned.manifest, edited.before, changes, no_test)
    assert placed(store, edited) is not None


def test_a_prefix_that_does_not_work_is_gone(edited: Edit, store: Store) -> None:
    make_spare(store, edited.before)
    with pytest.raises(placing.EnvironmentSyncError, match="it doesn't work"):
        place_changed(
            store, edited.scanned.manifest, edited.before, edited.changes, lambda _: "it doesn't work"
        )
    root = prefix_root(store.root, edited.scanned.manifest.id)
    assert not os.path.exists(root)
    assert find_prefix(store.root, edited.scanned.manifest.id) is None


def test_it_counts_after_a_crash_only_when_it_is_on_the_disk(
    edited: Edit, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_spare(store, edited.before)
    assert placed(store, edited) is not None
    new = edited.scanned.manifest.id
    os.close(hold(store.root, new))
    with monkeypatch.context() as patched:
        patched.setattr(placing, "boot_id", lambda: "another start of the machine")
        assert find_prefix(store.root, new) is None
        with pytest.raises(OSError, match="started anew"):
            hold(store.root, new)
    settle(store, new)
    monkeypatch.setattr(placing, "boot_id", lambda: "another start of the machine")
    assert find_prefix(store.root, new) is not None


def test_cleaning_takes_spares_away(edited: Edit, store: Store) -> None:
    make_spare(store, edited.before)
    spare = f"{store.root}/spare"
    assert len(os.listdir(spare)) == 3
    store.close()
    clean(store.root)
    assert os.listdir(spare) == ["lock"]


def test_content_that_was_written_to_is_no_part_of_a_spare(edited: Edit, store: Store) -> None:
    old = find_prefix(store.root, edited.before)
    assert old is not None
    data = next(Path(old.root).glob("env/lib/python*/site-packages/alpha/data.txt"))
    data.chmod(0o644)
    data.write_text("written by somebody in the store")
    with pytest.raises(placing.WrongContent):
        make_spare(store, edited.before)
    assert placed(store, edited) is None
