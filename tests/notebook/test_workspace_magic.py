"""`%mesh sync` in a notebook, and `monarch-nb sync` in a terminal, with a host that doesn't see this
machine's files.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from apart_hosts import hosts_apart
from kernels import RawKernel

TESTS = str(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nbproject")
    (folder / "shown.py").write_text("def word():\n    return 'one'\n")
    (folder / ".env").write_text("SECRET=1")
    return folder


@pytest.fixture(scope="module")
def kernel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawKernel]:
    with hosts_apart([project]):  # it may be skipped here
        pass
    store = tmp_path_factory.mktemp("nbstore")
    opened = RawKernel()
    opened.run(
        f"import os, sys; os.environ['MONARCH_NB_STORE'] = {str(store)!r}; "
        f"os.chdir({str(project)!r}); sys.path[:0] = ['', {TESTS!r}]\n%load_ext monarch_nb\nfrom "
        "pathlib import Path; from apart_hosts import hosts_apart\napart = "
        f"hosts_apart([Path({str(project)!r}), Path({str(store)!r})]); apart.__enter__()"
    )
    assert "is ready" in opened.show("%mesh start far --dims gpus=1 --hosts 2")
    opened.run("apart.__exit__(None, None, None)")
    yield opened
    assert "has ended" in opened.show("%mesh stop far")
    opened.close()


def test_said_sent_watched(kernel: RawKernel, project: Path) -> None:
    assert "%mesh sync (mesh.sync()) sends your files to hosts" in kernel.show("%%mesh\nimport shown")
    dry = kernel.show("%mesh sync --dry-run")
    assert "[hosts 1-2] 1 new (shown.py): 29 bytes to send" in dry and ".env (secret)" in dry
    done = kernel.show("%mesh sync --watch")
    assert "[hosts 1-2] 1 new (shown.py): 29 bytes sent" in done
    assert kernel.show("%%mesh\nimport shown\nshown.word()") == "[0-1] 'one'"
    (project / "shown.py").write_text("def word():\n    return 'two'\n")
    assert kernel.show("%%mesh\nshown.word()").endswith("[0-1] 'two'")
    (project / "more.txt").write_text("more")
    assert "[0-1] 'more'" in kernel.show("%%mesh\nopen('more.txt').read()")
    assert "2 new (.env, more.txt)" not in kernel.show("%mesh sync --include .env")
    assert "[0-1] 'SECRET=1'" in kernel.show("%%mesh\nopen('.env').read()")
    assert "%mesh sync reloads it" in kernel.show("%mesh sync --stop")
    assert "there is no 'nowhere.py'" in kernel.show("%mesh sync nowhere.py")


def test_from_a_terminal(kernel: RawKernel, project: Path) -> None:
    (project / "typed.txt").write_text("by hand")
    command = [sys.executable, "-m", "monarch_nb", "sync", "far"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and "[hosts 1-2]" in done.stdout and "typed.txt" in done.stdout, (
        done.stdout,
        done.stderr,
    )
    assert "[0-1] 'by hand'" in kernel.show("%%mesh\nopen('typed.txt').read()")
