"""Files of a workspace on a host: what may be placed where, what is kept, and what a crash in the middle
leaves.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb._workspace import entry as entries
from monarch_nb._workspace.answers import Edit, Outcome
from monarch_nb._workspace.entry import (
    BadEntry,
    Entry,
    Kind,
    check_path,
    check_target,
    manifest_of,
    pack,
    unpack,
)
from monarch_nb._workspace.placer import Placer

NUM_EXAMPLES = 10_000 if os.environ.get("MONARCH_NB_HOSTILE") == "full" else 500
NAME = "proj-0123456789ab"
TRICKS = [
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "a//b",
    "/etc/passwd",
    "a/",
    "./a",
    "a\0b",
    "a/./b",
    "x" * 256,
    "/".join(["d" * 200] * 20),
    "\ud800",
]


def entry(
    path: str, data: bytes | str = b"x", kind: Kind = Kind.FILE, mtime_ns: int = 1_000_000_000
) -> Entry:
    if kind is Kind.LINK:
        return Entry(path, kind, str(data))
    data = data.encode() if isinstance(data, str) else data
    return Entry(path, kind, entries.digest(data), len(data), mtime_ns)


class PlacedWorkspace:
    """A workspace, and a placer that is brought what it lacks."""

    def __init__(self, store: Path) -> None:
        self.placer = Placer(str(store), NAME, "h.1")
        self.folder = Path(self.placer.folder)

    def manifest(self, files: Mapping[str, bytes | str]) -> dict[str, Entry]:
        return manifest_of(entry(path, data) for path, data in files.items())

    def bring(
        self, files: Mapping[str, bytes | str], links: Mapping[str, str] | None = None
    ) -> tuple[Outcome, list[str]]:
        """Return what was done, and which paths' contents had to be sent."""
        manifest = self.manifest(files)
        manifest |= {path: entry(path, target, Kind.LINK) for path, target in (links or {}).items()}
        lacking = self.placer.look(manifest).contents
        sent = []
        for path, data in files.items():
            if manifest[path].content in lacking:
                self.send(data)
                sent.append(path)
        return self.placer.place(manifest), sent

    def send(self, data: bytes | str) -> None:
        data = data.encode() if isinstance(data, str) else data
        self.placer.staging.take_piece(entries.digest(data), 0, data, is_last=True)

    def holds(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.folder)): path.read_text()
            for path in self.folder.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def placed(tmp_path: Path) -> PlacedWorkspace:
    return PlacedWorkspace(tmp_path / "store")


def test_only_what_is_missing_is_sent_and_only_what_was_placed_is_deleted(placed: PlacedWorkspace) -> None:
    done, sent = placed.bring({"a.py": "1", "src/b.py": "2", "src/c.py": "2"})
    assert done.added == ("a.py", "src/b.py", "src/c.py") and sent == ["a.py", "src/b.py", "src/c.py"]
    (placed.folder / "own.txt").write_text("a rank's")
    done, sent = placed.bring({"a.py": "1", "src/b.py": "3", "moved/c.py": "2"})
    assert (done.added, done.changed, done.deleted, sent) == (
        ("moved/c.py",),
        ("src/b.py",),
        ("src/c.py",),
        ["src/b.py"],
    )
    assert placed.holds() == {"a.py": "1", "src/b.py": "3", "moved/c.py": "2", "own.txt": "a rank's"}
    assert placed.bring({"a.py": "1", "src/b.py": "3", "moved/c.py": "2"}) == (Outcome(), [])
    done, _ = placed.bring({})
    assert placed.holds() == {"own.txt": "a rank's"} and os.listdir(placed.folder) == ["own.txt"], (
        "folders that are empty go"
    )


def test_modes_and_times_are_those_of_home(placed: PlacedWorkspace) -> None:
    placed.send("run")
    placed.placer.place({"run.sh": entry("run.sh", "run", Kind.EXECUTABLE, 123_456_789_000)})
    found = (placed.folder / "run.sh").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o755, 123_456_789_000)
    plain = {"run.sh": entry("run.sh", "run", Kind.FILE, 5)}
    assert placed.placer.look(plain).contents == (), "what is there isn't sent again"
    placed.placer.place(plain)
    found = (placed.folder / "run.sh").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o644, 5)


def test_byte_code_of_the_old_source_goes(placed: PlacedWorkspace) -> None:
    placed.bring({"m.py": "x = 1", "n.py": "x = 1"})
    cache = placed.folder / "__pycache__"
    cache.mkdir()
    for name in ("m.cpython-311.pyc", "m.cpython-312.opt-1.pyc", "n.cpython-311.pyc", "mm.cpython-311.pyc"):
        (cache / name).touch()
    placed.bring({"m.py": "x = 2", "n.py": "x = 1"})
    assert sorted(os.listdir(cache)) == ["mm.cpython-311.pyc", "n.cpython-311.pyc"]


def test_a_file_becomes_a_folder_and_a_folder_a_file(placed: PlacedWorkspace) -> None:
    placed.bring({"a": "file", "b/c": "below"})
    done, _ = placed.bring({"a/x": "below", "b": "file"})
    assert not done.refused and placed.holds() == {"a/x": "below", "b": "file"}
    placed.bring({"a/x": "below", "b/c": "again"})
    (placed.folder / "a" / "own").write_text("a rank's")
    done, _ = placed.bring({"a": "file"})
    assert not done.refused and done.theirs == (("a", "a.theirs"),)
    assert placed.holds() == {"a": "file", "a.theirs/own": "a rank's"}


@pytest.mark.parametrize("how", ["written", "replaced", "linked", "made a folder"])
def test_what_was_changed_there_is_kept(placed: PlacedWorkspace, how: str) -> None:
    placed.bring({"f": "one", "g": "stays"})
    path = placed.folder / "f"
    if how == "written":
        with path.open("a") as file:
            file.write(" and more")
    else:
        path.unlink()
        {
            "replaced": lambda: path.write_text("other"),
            "linked": lambda: path.symlink_to("g"),
            "made a folder": path.mkdir,
        }[how]()
    done, _ = placed.bring({"f": "two", "g": "stays"})
    assert done.theirs == (("f", "f.theirs"),) and path.read_text() == "two"
    with path.open("a") as file:
        file.write("!")
    done, _ = placed.bring({"g": "stays"})
    assert (
        done.theirs == (("f", "f.theirs.2"),)
        and not path.exists()
        and (placed.folder / "f.theirs.2").read_text() == "two!"
    )


def test_a_file_that_is_touched_only_isnt_theirs(placed: PlacedWorkspace) -> None:
    placed.bring({"f": "one"})
    os.utime(placed.folder / "f")
    done, sent = placed.bring({"f": "one"})
    assert (done.theirs, sent, done.changed) == ((), [], ("f",))


@pytest.mark.parametrize("where", ["d", "d/e"])
def test_a_planted_link_is_refused_and_named(placed: PlacedWorkspace, tmp_path: Path, where: str) -> None:
    (tmp_path / "outside" / "e").mkdir(parents=True)
    (tmp_path / "outside" / "f").write_text("theirs")
    placed.bring({"d/e/f": "one", "other": "1"})
    target = placed.folder / where
    target.rename(placed.folder / "away")
    target.symlink_to(tmp_path / "outside")
    done, _ = placed.bring({"d/e/f": "two", "other": "2"})
    [(path, why)] = done.refused
    assert (
        path == "d/e/f"
        and why
        == f"{where} is a link to {tmp_path}/outside there, not a folder: nothing is written through it"
    )
    assert (placed.folder / "other").read_text() == "2", "the others are in place"
    placed.bring({"other": "2"})
    assert (
        sorted(os.listdir(tmp_path / "outside")) == ["e", "f"]
        and (tmp_path / "outside" / "f").read_text() == "theirs"
    )


def test_a_link_in_the_place_of_the_whole_folder_is_refused(placed: PlacedWorkspace, tmp_path: Path) -> None:
    placed.bring({"f": "one"})
    placed.folder.rename(tmp_path / "away")
    (tmp_path / "outside").mkdir()
    placed.folder.symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="is no folder there"):
        placed.bring({"f": "two"})
    assert os.listdir(tmp_path / "outside") == []


def test_links_stay_inside(placed: PlacedWorkspace) -> None:
    placed.bring({"d/f": "one"}, {"l": "d/f", "d/up": "../d"})
    assert (placed.folder / "l").read_text() == "one" and os.readlink(placed.folder / "d" / "up") == "../d"
    with pytest.raises(BadEntry, match="leads out of the workspace"):
        placed.bring({}, {"l": "../outside"})


def test_a_crash_in_the_middle_is_no_edit_of_a_rank(
    placed: PlacedWorkspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files were renamed into place, and that was never noted: the process was killed."""
    placed.bring({"a": "1", "b": "1"})
    with monkeypatch.context() as patch:
        patch.setattr("monarch_nb._workspace.record.Record.has_placed", lambda *args: None)
        placed.bring({"a": "2", "b": "2"})
    again = PlacedWorkspace(tmp_path / "store")
    done, sent = again.bring({"a": "2", "b": "3"})
    assert done.theirs == () and sent == ["b"] and again.holds() == {"a": "2", "b": "3"}


def test_a_line_of_the_record_that_was_not_finished_counts_for_nothing(
    placed: PlacedWorkspace, tmp_path: Path
) -> None:
    placed.bring({"a": "1"})
    record = Path(f"{placed.folder}.placed")
    record.write_text(record.read_text() + '{"path": "a", "conte')
    again = PlacedWorkspace(tmp_path / "store")
    assert again.bring({"a": "2"})[0].changed == ("a",)
    assert PlacedWorkspace(tmp_path / "store").bring({"a": "2"}) == (Outcome(), [])


def test_the_record_stays_short(placed: PlacedWorkspace) -> None:
    for n in range(600):
        placed.bring({"a": str(n)})
    assert len(Path(f"{placed.folder}.placed").read_text().splitlines()) < 1100
    assert placed.bring({"a": "599"}) == (Outcome(), [])


def test_a_few_changes_in_one_message(placed: PlacedWorkspace) -> None:
    files: dict[str, Any] = {"a": "1", "b": "1"}
    placed.bring(files)
    before, after = placed.manifest(files), placed.manifest({"a": "2"})
    change = Edit(
        entries.manifest_id(before),
        entries.manifest_id(after),
        (after["a"],),
        ("b",),
        {after["a"].content: b"2"},
    )
    done = placed.placer.edit(change)
    assert (
        done is not None and (done.changed, done.deleted) == (("a",), ("b",)) and placed.holds() == {"a": "2"}
    )
    assert placed.placer.manifest() == entries.manifest_id(after)
    assert placed.placer.edit(change) is None, "it isn't as it was"


def test_contents_are_what_their_names_say(placed: PlacedWorkspace) -> None:
    content = entries.digest(b"right")
    with pytest.raises(BadEntry, match="has another checksum"):
        placed.placer.staging.take_piece(content, 0, b"wrong", is_last=True)
    with pytest.raises(BadEntry, match="out of order"):
        placed.placer.staging.take_piece(content, 7, b"right", is_last=True)
    assert not placed.placer.staging.has(content)
    done = placed.placer.place({"f": Entry("f", Kind.FILE, content, 5, 1)})
    assert done.refused == (("f", "its content has not arrived: sync again"),)
    placed.placer.staging.take_piece(content, 0, b"ri", is_last=False)
    placed.placer.staging.take_piece(content, 2, b"ght", is_last=True)
    assert not placed.placer.place({"f": Entry("f", Kind.FILE, content, 5, 1)}).refused


def test_small_contents_come_together_and_outlive_a_crash(placed: PlacedWorkspace, tmp_path: Path) -> None:
    files = {f"part{n % 3}/m{n}.py": f"x = {n}".encode() for n in range(30)} | {
        "empty": b"",
        "same": b"x = 1",
    }
    manifest = placed.manifest(files)
    placed.placer.staging.take_all(list(files.values()))
    assert len(os.listdir(placed.placer.staging.path)) == 1, "they are one file"
    for host in ("h.1", "h.2"):  # one that is started again, and another one that shares the store
        placer = Placer(str(tmp_path / "store"), NAME, host)
        assert placer.look(manifest).contents == ()
    done = Placer(str(tmp_path / "store"), NAME, "h.2").place(manifest)
    assert not done.refused and placed.holds() == {path: data.decode() for path, data in files.items()}
    assert placed.placer.look(manifest).contents == () and not list(placed.folder.parent.glob("*.new-h.2"))


def test_a_pack_that_is_torn_puts_nothing_wrong_in_place(placed: PlacedWorkspace) -> None:
    files = {f"f{n}": f"content {n}" for n in range(5)}
    placed.placer.staging.take_all([data.encode() for data in files.values()])
    (pack,) = Path(placed.placer.staging.path).iterdir()
    pack.write_bytes(pack.read_bytes()[:-12])
    again = Placer(str(placed.folder.parent.parent), NAME, "h.1")
    done = again.place(placed.manifest(files))
    assert [path for path, _ in done.refused] == ["f3", "f4"] and sorted(done.added) == ["f0", "f1", "f2"]
    assert placed.bring(files)[1] == ["f3", "f4"], "they are sent again"
    pack.parent.mkdir(exist_ok=True)
    for head in (b"", b"{", b"[1]\n", b'{"a": "b"}\n', b"\xff\n"):
        pack.write_bytes(head)
        assert not Placer(str(placed.folder.parent.parent), NAME, "h.1").look(placed.manifest(files)).contents


@pytest.mark.parametrize("path", TRICKS)
def test_paths_that_no_workspace_has(path: str) -> None:
    with pytest.raises(BadEntry):
        check_path(path)
    with pytest.raises(BadEntry):
        manifest_of([Entry(path, Kind.FILE, "0" * 64)])


@pytest.mark.parametrize(
    "name", ["", "..", "a/b-0123456789ab", "proj", ".-0123456789ab/", "proj-0123456789ab/x"]
)
def test_names_of_workspaces_stay_in_the_store(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadEntry):
        Placer(str(tmp_path), name, "h")


NAMES = st.sampled_from(
    ["a", "b", "..", ".", "", "c.py", "a\0", "é", "\udcff", "x" * 300, "__pycache__"]
) | st.text(max_size=5)
PATHS = st.lists(NAMES, max_size=5).map("/".join) | st.text(max_size=12)
ENTRIES = st.builds(
    Entry,
    PATHS,
    st.sampled_from(list(Kind)),
    PATHS | st.just("0" * 64),
    st.integers(-1, 1 << 70),
    st.integers(-(1 << 70), 1 << 70),
)


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(st.lists(ENTRIES, max_size=4))
def test_a_manifest_is_refused_or_stays_inside(found: list[Entry]) -> None:
    try:
        manifest = manifest_of(found)
    except BadEntry:
        return
    for path in manifest:
        inside = os.path.normpath(f"/root/w/{path}")
        assert inside == f"/root/w/{path}" and "\0" not in path
        if manifest[path].is_link:
            assert os.path.normpath(
                os.path.join(os.path.dirname(inside), manifest[path].content) + "/"
            ).startswith("/root/w")
    assert unpack(pack(manifest)) == manifest


@settings(max_examples=NUM_EXAMPLES // 5, deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(st.text(max_size=4), max_size=10).map(
        lambda parts: "\0".join([*parts, ""]).encode("utf-8", "replace")
    )
)
def test_bytes_are_a_manifest_or_refused(data: bytes) -> None:
    try:
        manifest = unpack(data)
    except BadEntry:
        return
    assert unpack(pack(manifest)) == manifest


@settings(max_examples=NUM_EXAMPLES // 10, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["l", "d/l", "d/e/l"]),
            st.lists(st.sampled_from(["..", "l", "d", "e", "."]), min_size=1, max_size=5).map("/".join),
        ),
        max_size=3,
    )
)
def test_no_chain_of_links_leads_out(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str]]
) -> None:
    root = tmp_path_factory.mktemp("links") / "w"
    (root / "d" / "e").mkdir(parents=True)
    for path, target in links:
        try:
            check_target(path, target)
        except BadEntry:
            continue
        if not os.path.lexists(root / path):
            os.symlink(target, root / path)
    for path, _ in links:
        assert os.path.realpath(root / path).startswith(str(root)), links
