"""Run by the interpreter of a small environment: a machine without Python gets the environment, joins a mesh
by hand from there, and is synced as any other; prints what has come of it as JSON.

usage: bare_program.py NAME COMMAND
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

os.environ["MONARCH_NB_PRELOAD"] = "none"

from monarch_nb.job.allocation import Plan, read_record
from monarch_nb.job.engines import ENGINES
from monarch_nb.job.profiles import find_profile
from monarch_nb.mesh import Mesh, on_engine
from monarch_nb.mesh.shipping import send_to

sys.path.append(str(Path(__file__).parents[1]))
sys.path.insert(0, os.getcwd())  # as in a notebook
from waiting import wait_until

T = 120


class ByHand(threading.Thread):
    """A mesh whose host is started by hand: from an environment that was sent there."""

    def __init__(self, name: str, command: list[str]) -> None:
        super().__init__()
        self._name = name
        self._found: list[Any] = []
        self.start()
        path = wait_until(lambda: (r := read_record(name)) and r.directory, "an invitation")
        with open(path, "rb") as invitation:
            self.host = subprocess.Popen(
                command, stdin=invitation, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )

    def run(self) -> None:
        try:
            profile = find_profile("hand", ENGINES)
            self._found.append(on_engine.start_on(self._name, profile, Plan((("procs", 1),))))
        except Exception as error:
            self._found.append(error)

    def mesh(self) -> Mesh:
        """Return it, once its host has come."""
        self.join(T)
        if not self._found or not isinstance(self._found[0], Mesh):
            self.host.kill()
            raise AssertionError((self._found, self.host.communicate()))
        return self._found[0]


def main(name: str, command: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    sent = send_to([command])
    (arrived,) = sent.machines
    found["sent"], found["prefix"], found["problem"] = str(sent), arrived.prefix, arrived.problem
    waiting = ByHand(name, [command, arrived.python, "-P", "-m", "monarch_nb._host.launcher", "--join", "-"])
    try:
        mesh = waiting.mesh()
        found["same"] = str(mesh.sync(env=True))
        Path("model.py").write_text("ANSWER = 42\n")
        site = Path(next(p for p in sys.path if p.endswith("site-packages")))
        (site / "one_more.py").write_text("X = 1\n" * 1000)
        more = mesh.sync(env=True, to=[command])
        found["more"], found["done"] = str(more), more.is_done
        mesh.restart("all")
        mesh.run("import sys, socket, numpy, one_more, model")
        mesh.run(
            "where = (sys.prefix, socket.gethostname(), numpy.__file__, one_more.__file__, model.ANSWER)"
        )
        found["where"] = mesh.pull("where")[0]
        mesh.stop().get(T)
    finally:
        on_engine.cancel(name)
        waiting.host.kill()
        waiting.host.communicate()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
