"""Uses a mesh that runs on another machine: prints what its cells print, come what may."""

from __future__ import annotations

import sys
from typing import Any

from monarch_nb import mesh as meshes
from monarch_nb.actor import Actor, endpoint

CELL = """
import os, time
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
print("before", flush=True)
wait_for(FOLDER + "/away")
for i in range(200):
    print("line", i, flush=True)
open(FOLDER + f"/printed-{rank}", "w").close()
wait_for(FOLDER + "/back")
print("after", flush=True)
rank * 10
"""


class Adder(Actor):
    @endpoint
    def add(self, a: Any, b: Any) -> Any:
        return a + b


def main(name: str, folder: str) -> None:
    mesh = meshes.attach(name)
    mesh.run(CELL.replace("FOLDER", repr(folder)))
    adder = mesh.spawn("adder", Adder)
    long = adder.slice(procs=0).add.call_one(b"x" * 3_000_000, b"y").get()
    print("sum", list(adder.add.call(1, 2).get().values()), len(long))
    mesh.resize(procs=3)
    print("size", len(mesh), flush=True)
    mesh.stop().get(30)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
