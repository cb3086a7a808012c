"""Where ranks run with different things: found on real ranks that have been made to differ."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_meshes import own_mesh

from monarch_nb.mesh import Mesh


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("divergent", {"gpus": 4}) as found:
        yield found


@pytest.fixture(autouse=True)
def alike(mesh: Mesh) -> Iterator[None]:
    """Ranks are alike before each test and after it."""
    mesh.run(
        "import os, sys, resource\nkept = dict(os.environ), list(sys.path), os.getcwd(), "
        "resource.getrlimit(resource.RLIMIT_NOFILE)"
    )
    yield
    mesh.run(
        "os.environ.clear(); os.environ.update(kept[0]); sys.path[:] = kept[1]; os.chdir(kept[2])\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, kept[3])\nif 'torch' in sys.modules: import "
        "torch; torch.use_deterministic_algorithms(False); "
        "torch.set_float32_matmul_precision('highest')"
    )


def repository(folder: Path, content: str) -> str:
    """Make a git repository with one commit; return its id."""
    folder.mkdir()
    (folder / "train.py").write_text(content)
    me = (
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "commit.gpgsign=false",
    )
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run(["git", *me, *command], cwd=folder, check=True)
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_ranks_that_are_alike(mesh: Mesh) -> None:
    mesh.run("os.environ['RANK'] = str(rank)")
    found = mesh.diff_env()
    assert not found
    assert found.text().startswith("[0-3] run with the same")
    rank = found.find("variables", "RANK")
    assert rank is not None
    assert rank.differs
    assert rank.expected
    assert "variables: RANK" not in found.text()
    python = found.find("python", "version")
    assert python is not None
    assert python.groups == (((0, 1, 2, 3), ".".join(map(str, sys.version_info[:3]))),)


def test_a_variable_that_differs_and_one_that_is_missing(mesh: Mesh) -> None:
    mesh.run("if rank == 2: os.environ['NCCL_DEBUG'] = 'INFO'\nos.environ['MODE'] = 'a' if rank else 'b'")
    found = mesh.diff_env()
    assert {i.name for i in found.differing()} == {"NCCL_DEBUG", "MODE"}
    mode = found.find("variables", "MODE")
    assert mode is not None
    assert mode.groups == (((1, 2, 3), "a"), ((0,), "b"))
    lines = found.text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("variables: NCCL_DEBUG"))
    assert lines[at].split()[-3:] == ["[0-1,3]", "not", "there"] or lines[at].endswith("[0-1,3]  not there")
    assert lines[at + 1].split() == ["[2]", "INFO"]
    assert "NCCL_DEBUG" in found._repr_html_()
    assert not mesh.diff_env("0-1").find("variables", "NCCL_DEBUG")


def test_secrets_are_compared_and_never_shown(mesh: Mesh) -> None:
    mesh.run(
        "os.environ['WANDB_API_KEY'] = f'verysecret{rank % 2}'\nos.environ['https_proxy'] = "
        "f'http://me:hidden{rank // 2}@proxy:80'"
    )
    found = mesh.diff_env(shows_all=True)
    assert {i.name for i in found.differing()} == {"WANDB_API_KEY", "https_proxy"}
    key = found.find("variables", "WANDB_API_KEY")
    assert key is not None
    assert [ranks for ranks, _ in key.groups] == [(0, 2), (1, 3)]
    for text in (found.text(), found._repr_html_(), repr(found.items)):
        assert "verysecret" not in text
        assert "hidden" not in text
    again = mesh.diff_env().find("variables", "WANDB_API_KEY")
    assert again is not None
    assert again.groups != key.groups  # hashes are good within one answer only


def test_commit_and_changes_of_the_code(mesh: Mesh, tmp_path: Path) -> None:
    ids = [repository(tmp_path / name, name) for name in ("one", "two")]
    mesh.run(f"os.chdir(os.path.join({str(tmp_path)!r}, 'two' if rank == 3 else 'one'))")
    found = mesh.diff_env()
    commit = found.find("code", "commit")
    assert commit is not None
    assert commit.groups == (((0, 1, 2), ids[0]), ((3,), ids[1]))
    changes = found.find("code", "changes")
    assert changes is not None
    assert changes.groups == (((0, 1, 2, 3), "none"),)
    (tmp_path / "two" / "train.py").write_text("changed")
    changes = mesh.diff_env().find("code", "changes")
    assert changes is not None
    assert changes.groups[1][1].startswith("1 changed file, hash ")


def test_a_package_that_only_one_rank_finds(mesh: Mesh, tmp_path: Path) -> None:
    for folder, version in (("old", "1.0"), ("new", "2.0")):
        about = tmp_path / folder / f"divergent_thing-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: divergent_thing\nVersion: {version}\n")
    mesh.run(f"sys.path.insert(0, os.path.join({str(tmp_path)!r}, 'new' if rank == 1 else 'old'))")
    package = mesh.diff_env().find("packages", "divergent-thing")
    assert package is not None
    assert package.groups == (((0, 2, 3), "1.0"), ((1,), "2.0"))


def test_settings_of_torch_and_limits(mesh: Mesh) -> None:
    mesh.run(
        "import torch\nif rank == 0: torch.use_deterministic_algorithms(True); "
        "torch.set_float32_matmul_precision('high')\nif rank == 1: "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, kept[3][1]))"
    )
    found = mesh.diff_env()
    # importing parts of torch may set variables, too
    assert {(i.section, i.name) for i in found.differing() if i.section != "variables"} == {
        ("torch", "deterministic algorithms"), ("torch", "float32 matmul precision"), ("limits", "nofile"),
    }  # fmt: skip
    limit = found.find("limits", "nofile")
    assert limit is not None
    assert limit.groups[1][0] == (1,)
    assert limit.groups[1][1].startswith("100")


def test_random_states_are_told_but_are_no_difference(mesh: Mesh) -> None:
    mesh.run("import torch, random\nrandom.seed(0)\ntorch.manual_seed(rank == 3)")
    found = mesh.diff_env()
    assert not found.differing()
    state = found.find("random states", "torch")
    assert state is not None
    assert [ranks for ranks, _ in state.groups] == [(0, 1, 2), (3,)]
    lines = [line for line in found.text().splitlines() if line.startswith("random states")]
    assert [line.split(":")[0] for line in lines] == [
        "random states differ (torch)",
        "random states are equal (python)",
    ] or (len(lines) == 2 and "torch" in lines[0] and "python" in lines[1])


def test_from_a_terminal(mesh: Mesh) -> None:
    mesh.run("os.environ['MODE'] = str(rank == 2); os.environ['RANK'] = str(rank)")
    command = [sys.executable, "-m", "monarch_nb", "diff-env", "divergent"]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=90, env=dict(os.environ), check=False
    )
    assert ran.returncode == 1, ran.stderr
    assert "variables: MODE" in ran.stdout
    ran = subprocess.run(
        [*command, "--ranks", "0-1", "--all"], capture_output=True, text=True, timeout=90, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "variables: RANK" in ran.stdout
