"""The mesh of a notebook: named processes that outlive the kernel, cells that run on them, variables that go to and fro.

start      a mesh, ready
attach     a running mesh
Mesh       a ProcMesh with a name, a namespace for cells, a journal, and a life of its own

core         Mesh
starting     start and attach
running      start of a name that runs already: what is taken on, what is refused
listing      all meshes of this user, asked at once
cell_run     one run of a cell: wait for it, interrupt it, its result
variables    push, pull, scatter; what each rank holds; where ranks disagree
environment  where ranks' packages, variables and devices differ
actors       actors that run on a mesh, by name
history      the journal's entries
replay       what was missed, shown again
export       the journal as a notebook or a script
log_page     what ranks have written, page by page
"""

from monarch_nb.mesh.cell_run import CellError, CellInterrupted, CellResult, CellRun
from monarch_nb.mesh.core import Mesh
from monarch_nb.mesh.starting import IDLE_TIMEOUT_S, attach, start

__all__ = ["IDLE_TIMEOUT_S", "CellError", "CellInterrupted", "CellResult", "CellRun", "Mesh", "attach", "start"]
