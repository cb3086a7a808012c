"""Run by the interpreter of a small environment: follows that by a named mesh, changes it, and prints what
has come of it as JSON.

usage: watch_program.py NAME
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ["MONARCH_NB_PRELOAD"] = "none"

import monarch_nb.mesh
from monarch_nb.mesh import Mesh, brought, shipping


def said_by(mesh: Mesh, cell: str = "pass") -> str:
    """Run a cell; return what was said before it."""
    with contextlib.redirect_stderr(io.StringIO()) as output:
        mesh.run(cell)
    return output.getvalue()


def value(mesh: Mesh, expression: str) -> Any:
    mesh.run(f"found = {expression}")
    return mesh.pull("found")[0]


def counted_sends() -> list[str]:
    """Return a list that has an environment's id for each time that it's sent as a whole."""
    sent: list[str] = []
    send = shipping.send_environment

    def noted(*arguments: Any, **named: Any) -> Any:
        part = send(*arguments, **named)
        sent.append(part.id)
        return part

    shipping.send_environment = noted
    return sent


def main(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    sent = counted_sends()
    site = Path(next(p for p in sys.path if p.endswith("site-packages")))
    edited, package, new = site / "edited_here.py", site / "package_here", site / "package_here" / "part.py"
    edited.write_text("VERSION = 1\n")
    mesh = monarch_nb.mesh.start(name, {"gpus": 1})
    try:
        mesh.sync(env=True, copy=True, watch=True)
        mesh.restart("all")
        found["first"] = value(mesh, "(__import__('sys').prefix, __import__('edited_here').VERSION)")
        found["quiet"] = said_by(mesh)
        __import__("edited_here")  # writes byte code
        found["byte code"] = list(site.glob("__pycache__/edited_here*.pyc")) and said_by(mesh)
        edited.write_text("VERSION = 2\n")
        found["edited"] = said_by(mesh)
        found["living"] = value(mesh, "__import__('sys').prefix")
        found["sent as a whole"] = len(sent)
        mesh.restart("all")
        found["edited there"] = value(mesh, "(__import__('sys').prefix, __import__('edited_here').VERSION)")
        edited.write_text("VERSION = 2.5\n")
        found["edited again"] = said_by(mesh)
        found["sent as a whole again"] = len(sent)
        package.mkdir()
        found["empty folder"] = said_by(mesh)
        new.write_text("VERSION = 3\n")
        found["in a new folder"] = said_by(mesh)
        mesh.restart("all")
        found["restarted"] = value(
            mesh,
            "(__import__('sys').prefix, __import__('edited_here').VERSION, "
            "__import__('package_here.part').part.VERSION)",
        )
        shutil.rmtree(package)
        found["removed"] = said_by(mesh)
        mesh.sync_mode = "warn"
        edited.write_text("VERSION = 4\n")
        found["stopped"] = said_by(mesh)
        found["followed"] = len(brought._followed)
    finally:
        mesh.stop().get(60)
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
