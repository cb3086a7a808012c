"""Another user of this machine gets nothing of a mesh: no file, no socket, no process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

T = 60
ATTEMPTS = """
import json, os, signal, socket, sys
import monarch_nb.mesh.listing
from monarch_nb._client import launch

NOBODY = 65534
folders, pids, runtime = json.loads(sys.argv[1])
# The interpreter may lie where others can't read: all that is needed has been imported.
os.setgroups([])
os.setresgid(NOBODY, NOBODY, NOBODY)
os.setresuid(NOBODY, NOBODY, NOBODY)
got = []

def attempt(what, do):
    try:
        do()
    except (PermissionError, FileNotFoundError):
        return
    except OSError as error:
        what += f": {error}"
    got.append(what)

def connect(path):
    with socket.socket(socket.AF_UNIX) as dialling:
        dialling.connect(path)

for path, is_socket in folders:
    attempt(path, lambda: connect(path) if is_socket else open(path).close())
for pid in pids:
    attempt(f"signal to {pid}", lambda: os.kill(pid, signal.SIGTERM))
    attempt(f"environment of {pid}", lambda: open(f"/proc/{pid}/environ").close())
    attempt(f"descriptors of {pid}", lambda: os.listdir(f"/proc/{pid}/fd"))
os.environ["JUPYTER_RUNTIME_DIR"] = runtime
try:
    got += [connection.name for connection in launch.list_connections()]
except OSError:
    pass
print(json.dumps(got))
"""


def command(environment: dict[str, str], *words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "monarch_nb", *words],
        env=environment, capture_output=True, text=True, timeout=T, check=True,
    )  # fmt: skip
    return ran.stdout


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Folders that others may enter, so that only what the mesh makes in them is closed."""
    root = tmp_path_factory.mktemp("open")
    for folder in (root, *root.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    names = ("HOME", "TMPDIR", "JUPYTER_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")
    found = {**os.environ, **{name: str(root / name.lower()) for name in names}}
    found.pop("XDG_RUNTIME_DIR", None)
    for name in names:
        (root / name.lower()).mkdir(mode=0o755)
    before = os.umask(0)  # nothing is closed by chance
    yield found
    os.umask(before)
    for folder in root.parents:
        if folder.name.startswith("pytest-"):
            folder.chmod(0o700)


def made_in(environment: dict[str, str]) -> list[tuple[str, bool]]:
    """Return what a mesh has put into the folders: paths, and whether they're sockets."""
    root = Path(environment["TMPDIR"]).parent
    return [
        (str(path), path.is_socket())
        for path in root.rglob("*")
        if ".ipython" not in path.parts and (path.is_file() or path.is_socket())
    ]


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_another_user_gets_nothing(environment: dict[str, str]) -> None:
    command(environment, "start", "closed", "--procs", "2")
    try:
        command(environment, "exec", "closed", "print('secret', rank)")
        printed = command(environment, "exec", "closed", "--ranks", "0", "import os; print(os.getpid())")
        rank_pid = int(printed.split()[-1])
        made: list[Any] = []

        def everything_is_there() -> bool:
            made[:] = made_in(environment)
            return any(is_socket for _, is_socket in made)

        wait_until(everything_is_there, "the mesh has its files and sockets")
        given = json.dumps([made, [rank_pid], environment["JUPYTER_RUNTIME_DIR"]])
        ran = subprocess.run(
            [sys.executable, "-c", ATTEMPTS, given],
            env=environment, capture_output=True, text=True, timeout=T, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout) == []
        assert "2 ranks" in command(environment, "status", "closed")
    finally:
        command(environment, "stop", "closed")
