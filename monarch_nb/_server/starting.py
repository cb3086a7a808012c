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


async def start_mesh(request: StartRequest, directory: str) -> None:
    """Start a mesh, and wait until its ranks run.

    Args:
        directory: the working directory of the ranks.

    Raises:
        MeshStartError: if the command fails, with its message.
        RankTimeout: if it takes longer than `START_S`.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "monarch_nb",
        *command(request),
        cwd=directory,
        env={**clean_environment(), "MONARCH_NB_PROGRAM": WHO},
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
        text = error.decode(errors="replace").strip().removeprefix("monarch-nb: ")
        raise MeshStartError(text or f"the mesh did not start (exit code {process.returncode})")


def command(request: StartRequest) -> list[str]:
    """Return the arguments of `monarch-nb` that start the requested mesh.

    >>> command(StartRequest("demo", (("gpus", 2),), 0, "local", "8h"))
    ['start', 'demo', '--dims', 'gpus=2', '--job', 'local', '--idle-timeout', '8h']
    >>> command(StartRequest("demo", (), 0, "local", "8h", "auto"))[-1]
    '--init-process-group'
    """
    arguments = ["start", request.name]
    if request.dims:
        arguments += ["--dims", ",".join(f"{name}={size}" for name, size in request.dims)]
    if request.num_hosts:
        arguments += ["--hosts", str(request.num_hosts)]
    arguments += ["--job", request.job, "--idle-timeout", request.idle_timeout]
    if request.process_group:
        backend = [] if request.process_group == "auto" else [request.process_group]
        arguments += ["--init-process-group", *backend]
    return arguments
