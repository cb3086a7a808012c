"""Starts a mesh in a separate process, by the command line, exactly as a terminal would; the server's state
stays unchanged.
"""

from __future__ import annotations

import asyncio
import sys

from monarch_nb._client.launch import clean_environment
from monarch_nb._server.link import WHO
from monarch_nb._server.messages import StartRequest
from monarch_nb.exceptions import MeshStartError, RankTimeout

START_S = 120.0
PROGRAM = (sys.executable, "-m", "monarch_nb")


async def start_mesh(request: StartRequest, directory: str) -> None:
    """Start a mesh, and wait until its ranks run.

    Args:
        directory: the working directory of the ranks.

    Raises:
        MeshStartError: if the command fails, with its message.
        RankTimeout: if it takes longer than `START_S`.
    """
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *command(request),
        cwd=directory,
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, error = await asyncio.wait_for(process.communicate(), START_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise RankTimeout(
            f"mesh {request.name!r} was not up within {START_S:g} s; see: monarch-nb status {request.name}"
        ) from None
    if process.returncode:
        raise MeshStartError(why_not(error, process.returncode))


def why_not(error: bytes, status: int) -> str:
    """Return why a mesh did not start, from the output and the exit status of the command."""
    text = error.decode(errors="replace").strip().removeprefix("monarch-nb: ")
    return text or f"the mesh did not start (exit code {status})"


def environment() -> dict[str, str]:
    """Return the environment variables of a command that starts a mesh."""
    return {**clean_environment(), "MONARCH_NB_PROGRAM": WHO}


def command(request: StartRequest) -> list[str]:
    """Return the arguments of `monarch-nb` that start the requested mesh.

    >>> command(StartRequest("demo", (("gpus", 2),), 0, "local", "8h"))
    ['start', 'demo', '--dims', 'gpus=2', '--job', 'local', '--idle-timeout', '8h']
    >>> command(StartRequest("demo", (), 0, "local", "8h", "auto"))[-1]
    '--init-process-group'
    >>> command(StartRequest("big", (), 0, "local", "8h", on="lab", hosts="2..8", time="2h"))
    ['start', 'big', '--on', 'lab', '--hosts', '2..8', '--time', '2h', '--idle-timeout', '8h']
    """
    arguments = ["start", request.name]
    if request.dims:
        arguments += ["--dims", ",".join(f"{name}={size}" for name, size in request.dims)]
    if request.num_hosts:
        arguments += ["--hosts", str(request.num_hosts)]
    arguments += _of_engine(request) if request.on else ["--job", request.job]
    arguments += ["--idle-timeout", request.idle_timeout]
    if request.process_group:
        backend = [] if request.process_group == "auto" else [request.process_group]
        arguments += ["--init-process-group", *backend]
    return arguments


def _of_engine(request: StartRequest) -> list[str]:
    """Return the arguments that say which hosts of an engine are wanted."""
    given = {"on": request.on, "hosts": request.hosts, "gpus": str(request.gpus or ""), "time": request.time}
    return [word for name, value in given.items() if value for word in (f"--{name}", value)]
