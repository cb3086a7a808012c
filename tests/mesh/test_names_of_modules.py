"""A folder whose files have names of Python's own modules: what serves a mesh imports none of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from monarch_nb._host.starting import failure_to_start

NAMES = (
    "json",
    "nt",
    "os",
    "queue",
    "random",
    "select",
    "signal",
    "socket",
    "struct",
    "token",
    "types",
    "zmq",
)
USE = """
import monarch_nb
for name in ("forked", "spawned"):
    mesh = monarch_nb.attach(name)
    print(list(mesh.pull("rank").values()))
    mesh.stop().get()
"""


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_mesh_is_started_and_used_in_it(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"print('a file of mine', flush=True)\n1 / 0  # {name}\n")
    run(tmp_path, "-m", "monarch_nb", "start", "forked", "--procs", "2")
    run(tmp_path, "-m", "monarch_nb", "start", "spawned", "--procs", "1", "--spawn")
    assert run(tmp_path, "-c", USE) == "[0, 1]\n[0]\n"


@pytest.mark.parametrize("ends", [True, False])
def test_a_host_process_that_says_something_else_is_an_error(ends: bool) -> None:
    code = "import sys; print('hello', flush=True)" + (
        "" if ends else "; sys.stderr.close(); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    failure = failure_to_start(process)
    assert "the host process did not start" in failure and "it wrote b'hello\\n'" in failure
    assert process.returncode is not None
    assert process.stdin
    process.stdin.close()
