"""Another user of this machine gets nothing of a mesh: no file, no socket, no process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

T = 60
ATTEMPTS = """
import json, os, signal, socket, sys
import monarch_nb.mesh.listing
import encodings.idna  # a stranger can't import it from there any more
import zmq
from monarch_nb._client import launch
from monarch_nb._host import launcher
from monarch_nb._wire.invitation import Invitation
from monarch_nb._wire.keys import KeyPair

NOBODY = 65534
folders, pids, runtime, invitation = json.loads(sys.argv[1])
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
# The address is no secret, nor is the controller's key: without a guest's key nobody is heard at the port.
stranger = KeyPair.new()
text = {**json.loads(invitation), "guest_public": stranger.public, "guest_secret": stranger.secret}
try:
    launcher.knock(Invitation.from_json(json.dumps(text)), "stranger", None)
    got.append("a place in the mesh")
except launcher.LauncherError as error:
    if "isn't good any more" not in str(error):
        got.append(str(error))
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
    names = (
        "HOME", "TMPDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR",
        "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME",
    )  # fmt: skip
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
    invitation = Path(environment["HOME"]) / "key.join"
    with a_host_that_waits(environment):
        command(environment, "start", "closed", "--on", "lab", "--procs", "2")
        command(environment, "share", "closed", "--own", "--file", str(invitation))
        command(environment, "attach", str(invitation), "--as", "near")
        try:
            _see_that_nothing_is_got(environment, invitation.read_text())
        finally:
            command(environment, "stop", "closed")


@contextmanager
def a_host_that_waits(environment: dict[str, str]) -> Iterator[None]:
    """Have a host wait for meshes of the profile `lab`."""
    config, waiting = (
        Path(environment["XDG_CONFIG_HOME"]) / "monarch_nb",
        Path(environment["TMPDIR"]) / "pool",
    )
    config.mkdir(mode=0o755)
    waiting.mkdir(mode=0o700)
    profiles = config / "clusters.toml"
    profiles.write_text(f'[lab]\nengine = "compose"\nhosts = 1\n[lab.compose]\ndirectory = "{waiting}"\n')
    profiles.chmod(0o600)
    host = subprocess.Popen(
        [sys.executable, "-m", "monarch_nb", "host", "--wait", str(waiting)],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert host.stdout is not None and "waits in" in host.stdout.readline()
    try:
        yield
    finally:
        host.terminate()
        assert host.wait(T) == 0


def _see_that_nothing_is_got(environment: dict[str, str], invitation: str) -> None:
    command(environment, "exec", "closed", "print('secret', rank)")
    printed = command(environment, "exec", "closed", "--ranks", "0", "import os; print(os.getpid())")
    rank_pid = int(printed.split()[-1])
    made: list[Any] = []

    def everything_is_there() -> bool:
        made[:] = made_in(environment)
        return any(is_socket for _, is_socket in made)

    wait_until(everything_is_there, "the mesh has its files and sockets")
    names = {Path(path).name for path, _ in made}
    assert any("allocations" in path for path, _ in made), names
    assert {"key.join", "monarch_nb-near.json"} <= names, names
    given = json.dumps([made, [rank_pid], environment["JUPYTER_RUNTIME_DIR"], invitation])
    ran = subprocess.run(
        [sys.executable, "-c", ATTEMPTS, given],
        env=environment, capture_output=True, text=True, timeout=T, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == []
    assert "2 ranks" in command(environment, "status", "closed")
