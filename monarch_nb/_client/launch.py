"""Starting host processes, and finding those that run."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple

from monarch_nb._client.mesh_name import check_mesh_name
from monarch_nb._host.starting import host_command
from monarch_nb._journal.retention import KEEP_S, keep_s
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.directory import new_directory
from monarch_nb.exceptions import MeshNotFound, MeshStartError


class Connection(NamedTuple):
    """How to reach a home host process: the content of its connection file."""

    name: str
    pid: int
    directory: str
    path: str = ""
    wire_version: int = wire.VERSION


def start_host_process(config: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a host process, in a session of its own; returns once it serves.

    Raises:
        MeshStartError: with what it wrote, if it ended instead.
    """
    process = subprocess.Popen(
        host_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if config.get("debug") else subprocess.PIPE,
        start_new_session=True,
        env=clean_environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(config).encode())
    process.stdin.close()
    if process.stdout.readline() != b"ready\n":
        error = process.stderr.read().decode(errors="replace") if process.stderr else ""
        process.wait()
        raise MeshStartError(f"the host process did not start (exit code {process.returncode}):\n{error.strip()}")
    process.stdout.close()
    if process.stderr:
        process.stderr.close()
    return process


def clean_environment() -> dict[str, str]:
    """Return our environment without what only makes sense in a notebook kernel."""
    drop = ("JPY_PARENT_PID", "JPY_SESSION_NAME", "MPLBACKEND", "CLICOLOR", "FORCE_COLOR", "PAGER", "GIT_PAGER")
    return {k: v for k, v in os.environ.items() if k not in drop}


def importable_path() -> list[str]:
    """Return this program's module path for ranks, made absolute: "" is where it stands now."""
    return [os.path.abspath(p) if p else os.getcwd() for p in sys.path]


def home_config(**extra: Any) -> dict[str, Any]:
    """Return the configuration of a new home host process.

    Raises:
        MeshStartError: if there's no place for its sockets.
    """
    try:
        directory = new_directory()
    except OSError as error:
        raise MeshStartError(f"no mesh can be started here: {error}") from None
    return {
        "host": 0,
        "directory": os.path.join(directory, "h0"),
        "sys_path": importable_path(),
        "log": os.environ.get("MONARCH_NB_HOST_LOG"),
        **extra,
    }


def start_home(**extra: Any) -> Connection:
    """Start a home host process; `extra` goes into its configuration."""
    config = home_config(**extra)
    process = start_host_process(config)
    # Nobody waits for it: it isn't ours. Popen would warn, and its zombie goes with this process.
    process.returncode = 0
    return Connection(extra.get("name", ""), process.pid, config["directory"])


# --- connection files


def runtime_directory() -> str:
    """Return Jupyter's runtime directory, where the connection files lie."""
    from jupyter_core.paths import jupyter_runtime_dir

    path = jupyter_runtime_dir()
    os.makedirs(path, mode=0o700, exist_ok=True)
    return str(path)


def connection_path(name: str) -> str:
    """Return the connection file of the mesh `name`."""
    return os.path.join(runtime_directory(), f"monarch_nb-{check_mesh_name(name)}.json")


def journal_root() -> str:
    """Return the directory of the journals, which outlive their meshes."""
    from jupyter_core.paths import jupyter_data_dir

    return os.path.join(jupyter_data_dir(), "monarch_nb", "journals")


def new_journal(name: str) -> str:
    """Return the directory for the journal of a new mesh; journals that nobody has written to for a month go."""
    root = journal_root()
    os.makedirs(root, mode=0o700, exist_ok=True)
    for entry in os.scandir(root):
        with suppress(OSError):
            if entry.is_dir() and time.time() - _last_change(entry.path) > keep_s(entry.path):
                shutil.rmtree(entry.path, ignore_errors=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return os.path.join(root, f"{name}-{stamp}-{secrets.token_hex(2)}")


def _last_change(directory: str) -> float:
    return max([os.stat(directory).st_mtime, *(e.stat().st_mtime for e in os.scandir(directory))])


def find_journal(name: str) -> str:
    """Return the directory of the newest journal of a mesh that has ended.

    Raises:
        MeshNotFound: if there is none.
    """
    root = journal_root()
    found = sorted(
        (d for d in (os.listdir(root) if os.path.isdir(root) else []) if d.rsplit("-", 3)[0] == name),
        key=lambda d: _last_change(os.path.join(root, d)),
    )
    if not found:
        raise MeshNotFound(f"there is no journal of a mesh {name!r}; journals are kept for {KEEP_S / 86400:g} days, if nothing else was set")
    return os.path.join(root, found[-1])


def list_connections() -> list[Connection]:
    """Return the meshes of this user that run and speak our language; files of dead ones are removed."""
    return [c for c in list_all_connections() if c.wire_version == wire.VERSION]


def list_all_connections() -> list[Connection]:
    """Return the meshes of this user that run, whatever language they speak; files of dead ones are removed."""
    found = []
    directory = runtime_directory()
    for file in sorted(os.listdir(directory)):
        if file.startswith("monarch_nb-") and file.endswith(".json"):
            connection = _read(os.path.join(directory, file))
            if connection is not None:
                found.append(connection)
    return found


def find_connection(name: str | None) -> Connection:
    """Return the connection of the mesh `name`, or of the only one there is.

    Raises:
        MeshNotFound: if there's none of that name, or several to choose from; or if it's of another version.
    """
    connections = list_connections()
    names = ", ".join(c.name for c in connections) or "none"
    if name is None:
        if len(connections) == 1:
            return connections[0]
        raise MeshNotFound(f"which mesh? Running: {names}. Name one, or start one: %mesh start")
    for connection in connections:
        if connection.name == name:
            return connection
    refuse_other_version(name)
    raise MeshNotFound(f"mesh {name!r} is not running. Start it: %mesh start {name}; running: {names}")


def refuse_other_version(name: str) -> None:
    """Say so if a mesh of that name runs, but with another version of this package.

    Raises:
        MeshNotFound: saying what to do.
    """
    for connection in list_all_connections():
        if connection.name == name and connection.wire_version != wire.VERSION:
            raise MeshNotFound(
                f"mesh {name!r} runs with another version of monarch_nb (protocol {connection.wire_version}; this program "
                f"speaks {wire.VERSION}). Use the environment that it was started in, or end it: kill {connection.pid}"
            )


def _read(path: str) -> Connection | None:
    """Return what a connection file says, or None; one whose process is gone is removed."""
    try:
        if os.stat(path).st_uid != os.getuid():
            return None
        with open(path) as file:
            content = json.load(file)
        os.kill(content["pid"], 0)
        if os.path.exists(address.socket_path(content["directory"], address.HOME)):
            return Connection(
                content["name"], content["pid"], content["directory"], path, content.get("wire_version", 0)
            )
    except (OSError, ValueError, KeyError):
        pass
    with suppress(OSError):
        os.unlink(path)
    return None
