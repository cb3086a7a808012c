"""Starts host processes, and finds those that run."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from monarch_nb._client import children, connection_file
from monarch_nb._client.connection_file import Connection
from monarch_nb._client.mesh_name import check_mesh_name
from monarch_nb._host.config import HostConfig
from monarch_nb._host.starting import failure_to_start, host_command
from monarch_nb._journal.retention import KEEP_S, keep_s
from monarch_nb._protocol.claims import ClaimNote
from monarch_nb._protocol.states import ClaimState
from monarch_nb._protocol.warm import Requirements
from monarch_nb._wire import message as wire
from monarch_nb._wire import open_files
from monarch_nb._wire.directory import new_directory, private_directories, private_directory
from monarch_nb._wire.process import is_running, start_time
from monarch_nb.exceptions import MeshNotFound, MeshStartError

SETTLE_S = 150.0
"""How long a claim to a name may be held before the mesh exists: longer than a start may take."""
LOOK_S = 0.05


def start_host_process(config: HostConfig, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a host process, in a session of its own; returns once it serves.

    Args:
        env: environment variables besides ours.

    Raises:
        MeshStartError: with what it wrote, if it ended instead.
    """
    process = subprocess.Popen(
        host_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=clean_environment() | dict(env or {}),
    )
    open_files.restore_for(process.pid)  # before it has its configuration, and raises the limit itself
    assert process.stdin
    process.stdin.write(config.encode())
    process.stdin.close()
    if failure := failure_to_start(process):
        raise MeshStartError(failure)
    children.look_after(process)
    return process


def clean_environment() -> dict[str, str]:
    """Return this program's environment without variables that only make sense in a notebook kernel."""
    drop = (
        "JPY_PARENT_PID",
        "JPY_SESSION_NAME",
        "MPLBACKEND",
        "CLICOLOR",
        "FORCE_COLOR",
        "PAGER",
        "GIT_PAGER",
    )
    return {k: v for k, v in os.environ.items() if k not in drop}


def importable_path() -> list[str]:
    """Return this program's module path for ranks, made absolute: "" becomes the working directory."""
    return [os.path.abspath(p) if p else os.getcwd() for p in sys.path]


def controller_config(
    *,
    owner_pid: int | None = None,
    warm_claim: str = "",
    requirements: Requirements | None = None,
    warm: bool = True,
) -> HostConfig:
    """Return the configuration of a new controller; the arguments as `HostConfig` has them.

    Raises:
        MeshStartError: if there's no place for its sockets.
    """
    try:
        directory = new_directory()
    except OSError as error:
        raise MeshStartError(f"no mesh can be started here: {error}") from None
    return HostConfig(
        host=0,
        directory=os.path.join(directory, "h0"),
        sys_path=importable_path(),
        log=os.environ.get("MONARCH_NB_HOST_LOG"),
        owner_pid=owner_pid,
        warm_claim=warm_claim,
        requirements=requirements.as_json().decode() if requirements is not None else "",
        warm=warm,
    )


def start_controller(
    *,
    owner_pid: int | None = None,
    warm_claim: str = "",
    requirements: Requirements | None = None,
    warm: bool = True,
) -> Connection:
    """Start a controller; the arguments as `HostConfig` has them."""
    config = controller_config(
        owner_pid=owner_pid, warm_claim=warm_claim, requirements=requirements, warm=warm
    )
    process = start_host_process(config)
    return Connection("", process.pid, config.directory, start_time=start_time(process.pid))


# --- connection files


def runtime_directory() -> str:
    """Return Jupyter's runtime directory, where the connection files lie."""
    from jupyter_core.paths import jupyter_runtime_dir

    path = str(jupyter_runtime_dir())
    private_directories(path)
    return path


def connection_path(name: str) -> str:
    """Return the connection file of the mesh `name`."""
    return os.path.join(runtime_directory(), f"monarch_nb-{check_mesh_name(name)}.json")


def journal_root() -> str:
    """Return the directory of the journals, which outlive their meshes."""
    from jupyter_core.paths import jupyter_data_dir

    return os.path.join(jupyter_data_dir(), "monarch_nb", "journals")


def new_journal(name: str) -> str:
    """Return the directory for the journal of a new mesh; remove journals unused for a month."""
    root = journal_root()
    private_directories(root)
    # this user's own directory; older versions may have left its mode too permissive
    private_directory(os.path.dirname(root))
    private_directory(root)
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
        raise MeshNotFound(
            f"there is no journal of a mesh {name!r}; journals are kept for {KEEP_S / 86400:g} days, "
            "if nothing else was set"
        )
    return os.path.join(root, found[-1])


def list_connections() -> list[Connection]:
    """Return the running, reachable meshes of this user with this version of the wire format; remove files of
    dead ones.
    """
    return [c for c in list_all_connections() if not why_unusable(c)]


def list_all_connections() -> list[Connection]:
    """Return the running meshes of this user on this machine, of any version; remove files of dead ones."""
    directory = runtime_directory()
    names = [
        n
        for n in os.listdir(directory)
        if n.startswith(connection_file.PREFIX) and n.endswith(connection_file.SUFFIX)
    ]
    found = (connection_file.read(os.path.join(directory, name)) for name in sorted(names))
    return [connection for connection in found if connection is not None]


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
    refuse_unusable(name)
    with suppress(ValueError):  # no process holds an invalid name
        claim = find_claim(name)
        if claim is not None:
            raise MeshNotFound(
                f"{describe_claim(name, claim)}. Attach to it once it runs: %mesh start {name}"
            )
    raise MeshNotFound(f"mesh {name!r} is not running. Start it: %mesh start {name}; running: {names}")


def refuse_unusable(name: str) -> None:
    """Raise if a mesh of that name runs but can't be used: it's of another version of this package, or can't
    be reached.

    Raises:
        MeshNotFound: saying what to do.
    """
    for connection in list_all_connections():
        text = why_unusable(connection)
        if connection.name == name and text:
            raise MeshNotFound(text)


def why_unusable(connection: Connection) -> str:
    """Return why a mesh that runs can't be used, and what to do; an empty text if it can."""
    if connection.trouble or connection.wire_version == wire.VERSION:
        return connection.trouble
    return (
        f"mesh {connection.name!r} runs with another version of monarch_nb (protocol "
        f"{connection.wire_version}; this program speaks {wire.VERSION}). Use the environment that it "
        f"was started in, or end it: kill {connection.pid}"
    )


# --- the holder of a name


def claim_path(name: str) -> str:
    """Return the file whose lock is the right to a name."""
    return connection_file.claim_path(connection_path(name))


def find_claim(name: str) -> ClaimNote | None:
    """Return the note of the controller that has claimed a name; None if the name is free."""
    return connection_file.claimant(connection_path(name))


def wait_until_settled(
    name: str,
    timeout_s: float = SETTLE_S,
    *,
    states: Collection[ClaimState] = frozenset(ClaimState),
    on_wait: Callable[[str], None] = lambda _text: None,
) -> bool:
    """Wait while a mesh of that name is being started, or is about to end; say whether it runs then.

    Args:
        states: of the claim to the name, that are waited for; one that is running can be found soon.
        on_wait: told, if there's something to wait for, what that is.

    Raises:
        MeshStartError: if that takes too long.
    """
    deadline, waits = time.monotonic() + timeout_s, False
    while True:
        if any(c.name == name for c in list_connections()):
            return True
        refuse_unusable(name)
        claim = find_claim(name)
        # What a killed controller had forked may hold its name for a moment longer.
        if claim is None or (claim.state not in states and is_running(claim.pid, None)):
            return False
        if time.monotonic() > deadline:
            raise MeshStartError(
                f"{describe_claim(name, claim)}, for {timeout_s:g} s now; choose another name"
            )
        if not waits:
            waits = True
            on_wait(describe_claim(name, claim))
        time.sleep(LOOK_S)


def describe_claim(name: str, claim: ClaimNote) -> str:
    """Describe, in words, the owner of a name that can't be attached to."""
    if claim.state == ClaimState.ENDING:
        return f"mesh {name!r} is about to end (controller pid {claim.pid})"
    if claim.state == ClaimState.RUNNING and not is_running(claim.pid, None):
        return (
            f"the controller of mesh {name!r} (pid {claim.pid}) has died, and what it had started still ends"
        )
    if claim.state == ClaimState.RUNNING:
        return f"mesh {name!r} runs (controller pid {claim.pid}), but its connection file is gone"
    return f"mesh {name!r} is being started by {claim.who or 'another program'}"
