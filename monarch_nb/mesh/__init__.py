"""Named meshes: `start` starts one, `attach` connects to one that runs, and a `Mesh` runs cells, functions
and actors.

A mesh is a `ProcMesh` with a name, a namespace for cells, a journal, and a life of its own: it outlives the
program.

    >>> from monarch_nb import mesh as meshes
    >>> mesh = meshes.start("dev", {"gpus": 4})              # doctest: +SKIP
    >>> mesh.push(x=3)                                       # doctest: +SKIP
    >>> mesh.run("x + rank").get()                           # doctest: +SKIP
"""

from monarch_nb._sync import hints
from monarch_nb.mesh.cell_run import CellError, CellInterrupted, CellResult, CellRun
from monarch_nb.mesh.core import Mesh
from monarch_nb.mesh.starting import IDLE_TIMEOUT_S, attach, current, start
from monarch_nb.mesh.tasks import MapRun, MeshExecutor

__all__ = [
    "IDLE_TIMEOUT_S",
    "CellError",
    "CellInterrupted",
    "CellResult",
    "CellRun",
    "MapRun",
    "Mesh",
    "MeshExecutor",
    "attach",
    "current",
    "start",
]

hints.install()
