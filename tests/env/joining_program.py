"""Run by the interpreter of a small environment: gives it to a mesh whose hosts have stores of their own, has
hosts join and take lost ones' places, and prints what their first ranks ran in as JSON.

usage: joining_program.py NAME FOLDER
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["MONARCH_NB_PRELOAD"] = "none"
sys.path.append(str(Path(__file__).parents[1]))

from waiting import wait_until

import monarch_nb.mesh
from monarch_nb._client import launch
from monarch_nb._host.starting import host_command
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.states import HostState
from monarch_nb.actor.handle import session_of
from monarch_nb.mesh import Mesh, brought

OWN_STORE = 'MONARCH_NB_STORE="$0/$$/store" exec "$@"'


def prefixes(mesh: Mesh) -> list[str]:
    """Return what each rank was started in."""
    mesh.run("found = __import__('sys').prefix")
    return [value for _, value in mesh.pull("found").items()]


def said_by(do: Callable[[], Any]) -> str:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        do()
    return said.getvalue()


def spares(mesh: Mesh) -> list[int]:
    rows = session_of(mesh).request(Status()).hosts
    return [r.index for r in rows if r.state == HostState.UP and r.index not in (0, *mesh.host_indices)]


def pid_of_last_host(mesh: Mesh) -> int:
    rows = session_of(mesh).request(Status()).hosts
    return next(row.pid for row in rows if row.index == mesh.host_indices[-1])


def kill_last_host(mesh: Mesh) -> int:
    pid = pid_of_last_host(mesh)
    os.kill(pid, signal.SIGKILL)
    return pid


def lose_last_host(mesh: Mesh, folder: str) -> None:
    """Kill the process of the last host; its store is gone with it."""
    shutil.rmtree(f"{folder}/{kill_last_host(mesh)}")
    wait_until(lambda: len(mesh.living_ranks()) < len(mesh), "the loss is known")


def id_given(mesh: Mesh) -> str:
    return brought._given[session_of(mesh)].id


def main(name: str, folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    site = Path(next(p for p in sys.path if p.endswith("site-packages")))
    edited = site / "edited_here.py"
    edited.write_text("VERSION = 1\n")
    command = host_command()
    launch.host_command = lambda: ["sh", "-c", OWN_STORE, folder, *command]
    mesh = monarch_nb.mesh.start(name, {"gpus": 1}, num_hosts=2, num_spares=4)
    try:
        mesh.sync(env=True, copy=True, watch=True)
        lose_last_host(mesh, folder)
        found["heal said"] = said_by(lambda: mesh.heal())
        found["id"] = id_given(mesh)  # another one than before, if an import has written byte code meanwhile
        found["healed"] = prefixes(mesh)
        mesh.on_failure("heal")
        lost = kill_last_host(mesh)
        wait_until(
            lambda: pid_of_last_host(mesh) not in (lost, 0) and len(mesh.living_ranks()) == len(mesh),
            "another host is in its place, and ranks are being started",
        )
        mesh.run("waited = True", timeout=60)  # its zygote is being replaced: the store is there
        found["healed by itself"] = list(mesh.pull("waited").values())
        edited.write_text("VERSION = 2\n")
        found["grow said"] = said_by(lambda: mesh.take_hosts(spares(mesh)[:1]))
        found["new id"] = id_given(mesh)
        found["grown"] = prefixes(mesh)
        mesh.run("version = __import__('edited_here').VERSION")
        found["version"] = [value for _, value in mesh.pull("version").items()][-1]
        mesh.sync_mode = "warn"
        found["joined later"] = said_by(lambda: mesh.take_hosts(spares(mesh)[:1]))
        found["not followed"] = prefixes(mesh)
        mesh.run("version = __import__('edited_here').VERSION")
        found["version later"] = [value for _, value in mesh.pull("version").items()][-1]
    finally:
        mesh.stop().get(60)
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
