"""Which files of a folder go along: as git says, or as `.gitignore` files say where there's no git; what
is left out is told.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from monarch_nb._sync import ignore
from monarch_nb._sync.ignore import Choice, list_files
from monarch_nb._sync.workspace import Workspace, root_of
from monarch_nb.exceptions import MeshUsageError

NUM_EXAMPLES = 2_000 if os.environ.get("MONARCH_NB_HOSTILE") == "full" else 60
TREE = {
    "model.py": 1,
    "src/train.py": 1,
    "src/data/x.csv": 1,
    "data/big.csv": 1,
    "out/log.txt": 1,
    ".env": 1,
    "src/key.pem": 1,
    "id_rsa": 1,
    "id_map.py": 1,
    "src/__pycache__/train.cpython-311.pyc": 1,
    "node_modules/a/index.js": 1,
    ".venv/pyvenv.cfg": 1,
    ".venv/lib/x.py": 1,
    "_version.py": 1,
}


def make(folder: Path, tree: dict[str, int], gitignore: str = "data/\nout/\n_version.py\n") -> Path:
    for path, size in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
        os.truncate(folder / path, size)
    (folder / ".gitignore").write_text(gitignore)
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", folder, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(params=["git", "no git"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    make(tmp_path, TREE)
    if request.param == "git":
        git(tmp_path, "init", "-q")
    return tmp_path


def listed(
    folder: Path,
    *,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    imported: tuple[str, ...] = (),
) -> tuple[set[str], dict[str, str]]:
    found = list_files(str(folder), Choice.of(str(folder), include, exclude), imported)
    return set(found.paths), {each.path: each.reason for each in found.left_out}


def test_what_goes_along_and_what_is_told(folder: Path) -> None:
    paths, left_out = listed(folder)
    assert paths == {".gitignore", "model.py", "src/train.py", "id_map.py"}, left_out
    assert left_out == {
        "data/": ".gitignore",
        "out/": ".gitignore",
        "_version.py": ".gitignore",
        ".env": "secret",
        "src/key.pem": "secret",
        "id_rsa": "secret",
        ".venv/": "environment",
        "src/data/": ".gitignore",
    }


def test_what_the_kernel_has_imported_goes_along_though_it_is_ignored(folder: Path) -> None:
    paths, left_out = listed(folder, imported=("_version.py",))
    assert "_version.py" in paths and "_version.py" not in left_out


def test_include_and_exclude(folder: Path) -> None:
    paths, left_out = listed(folder, include=("data/", ".env"), exclude=("src/",))
    assert paths == {".gitignore", "model.py", "id_map.py", "data/big.csv", "src/data/x.csv", ".env"}
    assert left_out["src/train.py"] == ".meshignore or --exclude"
    (folder / ".meshignore").write_text("# more\nmodel.py\n!out/\n")
    paths, left_out = listed(folder)
    assert "out/log.txt" in paths and "model.py" not in paths and ".meshignore" in paths


def test_big_files_are_left_out_and_told(folder: Path) -> None:
    os.truncate(folder / "model.py", 101 << 20)
    paths, left_out = listed(folder)
    assert "model.py" not in paths and left_out["model.py"] == "101 MiB: --include"
    assert "model.py" in listed(folder, include=("model.py",))[0]


def test_too_many_and_too_large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch_nb._sync.workspace.ASKED_BYTES", 1000)
    os.truncate(folder / "src" / "train.py", 2000)
    with pytest.raises(
        MeshUsageError, match=r"has 1\.9\d+ KiB to send \(src .*--exclude GLOB.*%mesh sync PATH.*--force"
    ):
        Workspace(str(folder)).scan()
    assert "src/train.py" in Workspace(str(folder)).scan(force=True).manifest
    monkeypatch.setattr(ignore, "MAX_FILES", 3)
    with pytest.raises(MeshUsageError, match=r"has over 3 files\. Say which folder"):
        Workspace(str(folder)).scan()


def test_a_repository_in_a_repository_and_its_root(tmp_path: Path) -> None:
    make(tmp_path, {"a.py": 1, "nested/b.py": 1, "nested/out/c": 1, "sub/d.py": 1})
    git(tmp_path, "init", "-q")
    git(tmp_path / "nested", "init", "-q")
    assert listed(tmp_path)[0] == {".gitignore", "a.py", "nested/b.py", "sub/d.py"} or listed(tmp_path)[
        0
    ] >= {"nested/b.py"}
    assert root_of(str(tmp_path / "sub" / "d.py")) == str(tmp_path) and root_of(
        str(tmp_path / "nested")
    ) == str(tmp_path / "nested")


def test_links_and_what_is_no_file(folder: Path) -> None:
    os.symlink("src/train.py", folder / "inside")
    os.symlink("/etc/passwd", folder / "outside")
    os.mkfifo(folder / "pipe")
    scan = Workspace(str(folder)).scan()
    assert (
        scan.manifest["inside"].content == "src/train.py"
        and "pipe" not in scan.manifest
        and "outside" not in scan.manifest
    )
    assert {each.path: each.reason for each in scan.left_out}[
        "outside"
    ] == "a link that leads out of the workspace: '/etc/passwd'"


def test_changes_are_noticed_at_once(folder: Path) -> None:
    workspace = Workspace(str(folder))
    first = workspace.scan()
    assert workspace.current() is first
    for n in range(20):
        (folder / "model.py").write_text(f"x = {n}")
        assert workspace.current().manifest["model.py"].size == len(f"x = {n}")
        beside = folder / "model.py.tmp"
        beside.write_text(f"y = {n}!")
        os.replace(beside, folder / "model.py")
        now = workspace.current()
        assert now.manifest["model.py"].size == len(f"y = {n}!") and set(now.manifest) == set(first.manifest)
    (folder / "new" / "deep").mkdir(parents=True)
    (folder / "new" / "deep" / "file.py").touch()
    assert "new/deep/file.py" in workspace.current().manifest
    (folder / "new" / "deep" / "file.py").write_text("more")
    assert workspace.current().manifest["new/deep/file.py"].size == 4
    (folder / "new" / "deep" / "file.py").unlink()
    assert set(workspace.current().manifest) == set(first.manifest)
    (folder / "empty").mkdir()
    workspace.current()
    (folder / "empty" / "late.py").touch()
    assert "empty/late.py" in workspace.current().manifest
    (folder / ".gitignore").write_text("model.py\n")
    assert "model.py" not in workspace.current().manifest
    workspace.close()


NAMES = st.sampled_from(["a", "b", "c.py", "d.txt", "data", "x y"])
PATTERNS = st.lists(
    st.builds(
        lambda negated, rooted, parts, folder: (
            "!" * negated + "/" * rooted + "/".join(parts) + "/" * (folder and parts[-1] != "**")
        ),  # `a/**/` is folders only, for git; pathspec takes it for files, too
        st.booleans(),
        st.booleans(),
        st.lists(
            st.sampled_from(["a", "b", "*.py", "d*", "**", "data", "?.py", "[ab]", "c.py"]),
            min_size=1,
            max_size=3,
        ),
        st.booleans(),
    ),
    max_size=4,
)


@example(["b/a/a"], ["a/", "b", "!b"], [])  # what means a folder means nothing that lies in it
@example(["a/b/c.py"], ["a/**", "!a/b", "!a/b/**"], [])
@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(
    st.lists(st.lists(NAMES, min_size=1, max_size=3).map("/".join), min_size=1, max_size=6),
    PATTERNS,
    PATTERNS,
)
def test_without_git_as_git_check_ignore_says(
    tmp_path_factory: pytest.TempPathFactory, paths: list[str], outer: list[str], inner: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    for path in paths:
        if not (folder / path).exists() and all(not above.is_file() for above in (folder / path).parents):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
    (folder / ".gitignore").write_text("\n".join(outer))
    if (folder / "data").is_dir():
        (folder / "data" / ".gitignore").write_text("\n".join(inner))
    without = listed(folder)[0]
    git(folder, "init", "-q")
    files = [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and ".git/" not in f"{path}"
    ]
    done = subprocess.run(
        ["git", "-C", folder, "check-ignore", "-z", "--stdin"],
        input="\0".join(files),
        capture_output=True,
        text=True,
        check=False,
    )
    ignored = set(filter(None, done.stdout.split("\0")))
    assert without == set(files) - ignored, (outer, inner)
    assert listed(folder)[0] == without
