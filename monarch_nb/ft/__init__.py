"""torchft on a mesh: replica groups that train together, each of which may die and rejoin while the others
continue.

A dimension of the mesh counts the groups; what is inside of it is one group's. The lighthouse, at which
groups find each other, runs in a rank of its own on the controller's machine; each group has a store, and
torchft's manager runs in its first rank. Install: `pip install torchft`.
"""

from monarch_nb.ft.groups import GroupResult, ReplicaGroups, average_gradients, make_manager
from monarch_nb.ft.titan import train_titan

__all__ = ["GroupResult", "ReplicaGroups", "average_gradients", "make_manager", "train_titan"]
