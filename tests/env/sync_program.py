"""Run by the interpreter of a small environment: a named mesh, `Mesh.sync(env=True)`, and what it says, as
JSON.

usage: sync_program.py NAME
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["MONARCH_NB_PRELOAD"] = "none"

import monarch_nb.mesh


def prefixes(mesh: Any) -> list[str]:
    mesh.run("import sys; where = sys.prefix")
    return list(mesh.pull("where").values())


def main(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    mesh = monarch_nb.mesh.start(name, {"gpus": 1}, num_hosts=2)
    try:
        found["before"] = prefixes(mesh)
        found["dry"] = str(mesh.sync(env=True, copy=True, dry_run=True))
        receipt = mesh.sync(env=True, copy=True)
        found["said"], found["done"] = str(receipt), receipt.is_done
        found["living"] = prefixes(mesh)
        mesh.restart("all")
        found["restarted"] = prefixes(mesh)
        found["again"] = str(mesh.sync(env=True, copy=True))
    finally:
        mesh.stop().get(60)
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
