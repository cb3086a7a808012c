"""Many small tasks on the ranks of a mesh: each rank gets the next task when it is free, so that uneven tasks
are balanced.

pool      hands out tasks; one that was on a rank when that died is given to another
mapping   mesh.map: a function over items, in order or as they're done
executor  mesh.executor(): a concurrent.futures.Executor
many      both, as a mesh has them
joblib    the backend "monarch_nb" of joblib
"""

from monarch_nb.mesh.tasks.executor import MeshExecutor
from monarch_nb.mesh.tasks.many import Tasks
from monarch_nb.mesh.tasks.mapping import MapRun

__all__ = ["MapRun", "MeshExecutor", "Tasks"]
