"""A scan is remembered as long as no file's status has changed, and gives what a scan gives."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import OLD_S, Made, make_venv, write_old

from monarch_nb._sync.env import snapshot
from monarch_nb._sync.env.cache import HashCache
from monarch_nb._sync.env.interpreter import interpreter_of
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.scan import Scanned, scan
from monarch_nb._sync.env.snapshot import Snapshots


@pytest.fixture
def venv(made: Made, tmp_path: Path) -> Made:
    """An environment of this test's own."""
    other = make_venv(tmp_path / "venv")
    other.install(*sorted(made.prefix.parent.glob("alpha*.whl")))
    return other


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take files for settled at once; `test_files_that_were_just_written` has the rule itself."""
    monkeypatch.setattr(snapshot, "RACY_NS", 0)


class Scans:
    """Scans of an environment, with a store of their own."""

    def __init__(self, venv: Made, folder: Path) -> None:
        self._venv, self._folder = venv, folder

    def remembering(self, **how: bool) -> Scanned:
        cache = HashCache(str(self._folder / "content.sqlite"))
        found = find_layers(interpreter_of(self._venv.python))
        return scan(found, cache, snapshots=Snapshots(str(self._folder / "scans")), **how)

    def whole(self) -> Scanned:
        return scan(find_layers(interpreter_of(self._venv.python)), HashCache(""))


@pytest.fixture
def scans(venv: Made, tmp_path: Path) -> Scans:
    return Scans(venv, tmp_path / "home")


def same(one: Scanned, other: Scanned) -> bool:
    return (
        one.manifest.text == other.manifest.text
        and {k: p.text for k, p in one.parts.items()} == {k: p.text for k, p in other.parts.items()}
        and {k: (s.path, s.treatment) for k, s in one.sources.items()}
        == {k: (s.path, s.treatment) for k, s in other.sources.items()}
        and one.edited == other.edited
        and one.left_out == other.left_out
        and one.num_bytes == other.num_bytes
    )


def test_a_second_scan_reads_no_file_and_gives_the_same(scans: Scans) -> None:
    first, second = scans.remembering(), scans.remembering()
    assert first.layers and first.num_read and not second.layers and not second.num_read
    assert same(first, second) and same(second, scans.whole())


def test_edits_can_be_asked_for_and_all_be_verified_nevertheless(scans: Scans) -> None:
    scans.remembering()
    assert scans.remembering(follows=True).layers
    assert scans.remembering(verify=True).num_read > 10


CHANGES: dict[str, Callable[[Path], object]] = {
    "an edit in place, as long": lambda file: file.write_text(file.read_text().replace("some", "SOME")),
    "a mode": lambda file: os.chmod(file, 0o755),
    "a file more": lambda file: write_old(file.with_name("more.txt"), "more"),
    "a file less": lambda file: file.unlink(),
    "another file in its place": lambda file: os.replace(_old_twin(file), file),
    "a link in its place": lambda file: (file.unlink(), file.symlink_to("__init__.py")),
}


def _old_twin(file: Path) -> Path:
    twin = file.with_name("twin.txt")
    write_old(twin, file.read_text() + "more")
    os.utime(twin, (OLD_S, OLD_S))
    return twin


@pytest.mark.parametrize("what", CHANGES)
def test_every_change_is_seen(scans: Scans, venv: Made, what: str) -> None:
    before = scans.remembering()
    CHANGES[what](venv.site / "alpha" / "data.txt")
    after = scans.remembering()
    assert same(after, scans.whole()) and after.layers
    assert after.manifest.id != before.manifest.id
    assert same(scans.remembering(), after)


def test_files_that_were_just_written_are_looked_at_again(
    scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "RACY_NS", 3600 * 10**9)
    scans.remembering()
    assert scans.remembering().layers, "another write might leave the same time"


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, None])
def test_a_broken_snapshot_is_none(scans: Scans, tmp_path: Path, content: bytes | None) -> None:
    first = scans.remembering()
    (path,) = (tmp_path / "home" / "scans").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(path.read_bytes()[:-50] if content is None else content)
    again = scans.remembering()
    assert again.layers and same(first, again)
    assert not scans.remembering().layers, "it's made anew"


def test_a_link_to_elsewhere_is_told_if_it_leads_to_something_now(
    scans: Scans, venv: Made, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.txt"
    (venv.site / "alpha" / "link.txt").symlink_to(elsewhere)
    assert not scans.remembering().left_out
    elsewhere.write_text("here")
    found = scans.remembering()
    assert not found.layers and [Path(path).name for path, _ in found.left_out] == ["link.txt"]


def test_few_snapshots_are_kept(tmp_path: Path, venv: Made) -> None:
    store, found = Snapshots(str(tmp_path / "scans")), find_layers(interpreter_of(venv.python))
    outcome = scan(found, HashCache(""))
    for i in range(snapshot.MAX_KEPT + 3):
        layers = found.__class__(found.layers, ((f"path{i}", "."),), interpreter=found.interpreter)
        store.keep(layers, snapshot.taken("x", outcome.manifest, outcome.parts, outcome.sources, (), {}))
    assert len(os.listdir(tmp_path / "scans")) == snapshot.MAX_KEPT
