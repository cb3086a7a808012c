"""The actors that run on a mesh, by name, so that a returning notebook finds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from monarch_nb._protocol.work import Work
from monarch_nb._shape import format_ranks
from monarch_nb.actor.proc_mesh import work_on

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

_ASK_S = 10.0


class Actors(Mapping[str, Any]):
    """The living actors of a mesh: a mapping from name to handle, requested from the ranks at each access.

    Example:
        >>> mesh.actors                                   # doctest: +SKIP
        <actors: trainer on ranks 0-7>
        >>> mesh.actors["trainer"].step.call().get()      # doctest: +SKIP
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def _names(self) -> dict[str, list[int]]:
        """Return the ranks on which each name lives."""
        found: dict[str, list[int]] = {}
        mesh = self._mesh
        for rank, names in enumerate(
            work_on(mesh.living(), Work.ACTORS, None, "actors").get(_ASK_S).values()
        ):
            for name in names:
                found.setdefault(name, []).append(mesh.living_ranks()[rank])
        return found

    def __getitem__(self, name: str) -> Any:
        names = self._names()
        if name not in names:
            raise KeyError(
                f"no actor {name!r} runs on mesh {self._mesh.name!r}; there are: {', '.join(names) or 'none'}"
            )
        part = self._mesh.part(names[name][:1])
        return work_on(part, Work.ACTOR, name, f"actor {name}").get(_ASK_S).item()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        names = self._names()
        text = ", ".join(f"{name} on ranks {format_ranks(ranks)}" for name, ranks in names.items())
        return f"<actors: {text or 'none'}>"
