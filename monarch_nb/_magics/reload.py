"""Hot swap: a redefined class replaces the old one in living actors, whose state stays."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from monarch_nb._commands.parser import Namespace
from monarch_nb._magics.state import State
from monarch_nb._protocol.work import Work
from monarch_nb._shape import format_ranks
from monarch_nb.actor.actor_mesh import class_of, spawned_as, take_class
from monarch_nb.actor.handle import session_of
from monarch_nb.actor.proc_mesh import work_on
from monarch_nb.exceptions import MeshUsageError


def reload(state: State, arguments: Namespace) -> None:
    """Replace the methods of living actors by those of a class."""
    from monarch_nb.actor import Actor

    cls = state.shell.user_ns.get(arguments.cls)
    if not (isinstance(cls, type) and issubclass(cls, Actor)):
        raise MeshUsageError(f"%mesh reload: {arguments.cls} is no actor class of this notebook")
    mesh = state.mesh(arguments.name)
    found = work_on(
        mesh.living(), Work.RELOAD_CLASS, (cls.__qualname__, cls), f"reload of {cls.__name__}"
    ).get()
    counts = list(found.values())
    ranks = [rank for rank, num in zip(mesh.living_ranks(), counts, strict=True) if num]
    if not ranks:
        raise MeshUsageError(
            f"%mesh reload: no actor of a class {cls.__qualname__} lives on mesh {mesh.name!r}"
        )
    for handle in handles_of(mesh, cls.__qualname__):
        take_class(handle, cls)
    print(
        f"{sum(counts)} actor{'s' * (sum(counts) > 1)} on ranks {format_ranks(ranks)} have the new "
        f"{cls.__name__}; state kept"
    )


def handles_of(mesh: Any, qualname: str) -> list[Any]:
    """Return this program's handles on actors of a class of that name."""
    return [m for m in list(session_of(mesh).meshes.values()) if class_of(m).__qualname__ == qualname]


class StaleClasses:
    """The hook after each cell that names living actors made of a class which the cell has redefined."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[str, weakref.ref[type]] = {}

    def __call__(self, result: Any = None) -> None:
        """Find classes that are new; called after each cell."""
        actor_mesh = sys.modules.get("monarch_nb.actor.actor_mesh")
        if actor_mesh is None:
            return
        for name, value in list(self._state.shell.user_ns.items()):
            if name.startswith("_") or not isinstance(value, type) or not issubclass(value, actor_mesh.Actor):
                continue
            known = self._known.get(name)
            before = known() if known is not None else None
            self._known[name] = weakref.ref(value)
            if known is not None and before is not value and value.__module__ == "__main__":
                self._tell(name, value)

    def _tell(self, name: str, cls: type) -> None:
        for mesh in self._state.meshes.values():
            old = [m for m in handles_of(mesh, cls.__qualname__) if class_of(m) is not cls]
            if old:
                names = ", ".join(sorted({spawned_as(m) for m in old}))
                print(
                    f"{names} on mesh {mesh.name!r} still ha{'ve' if len(old) > 1 else 's'} the old {name}: "
                    f"%mesh reload {name} puts the new methods on, and keeps the state"
                )
