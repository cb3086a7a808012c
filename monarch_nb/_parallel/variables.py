"""Variables that a module's methods read, these methods, and what its classes set.

Classes and functions of a notebook, or of a script itself, are sent by value: ranks have them, and the
variables that they read, as these were then. Of a module that can be imported each process has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from monarch_nb._frames.owner import warn_user
from monarch_nb._parallel.contents import Contents
from monarch_nb._rank.tensor.files import checksums
from monarch_nb._tensor.references import OfFile, is_users_class
from monarch_nb.exceptions import StaleCode

_WARN, _STRICT = "warn", "strict"
Checksums = list[int | None]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The ranks' own modules.

    Attributes:
        checksums: asks all ranks for checksums of what has these names.
        mode: says what is done if they differ: `warn`, `strict`, or nothing.
    """

    checksums: Callable[[list[tuple[str, str]]], list[Checksums]]
    mode: Callable[[], str]

    def other(self, names: Iterable[OfFile]) -> list[OfFile]:
        """Return those that aren't on all ranks what they are here, as far as it can be said."""
        ordered = sorted(names, key=lambda each: (not each.is_code, each))
        asked = [(each.owner, each.part) for each in ordered]
        if not asked:
            return []
        here, there = checksums(asked), self.checksums(asked)
        return [name for n, name in enumerate(ordered) if any(_differ(here[n], found[n]) for found in there)]


def _differ(here: int | None, there: int | None) -> bool:
    return here is not None and there is not None and here != there


class Variables:
    """The classes of some layers, the methods of these, and what they lead to.

    Args:
        layers: the layers.
        elsewhere: the ranks' modules.

    Raises:
        StaleCode: if ranks have loaded other code of a file, and the mode is strict.
    """

    def __init__(self, layers: Iterable[nn.Module], elsewhere: Elsewhere) -> None:
        kinds = {kind for layer in layers for kind in type(layer).__mro__ if is_users_class(kind)}
        self._kinds = sorted(kinds, key=id)
        self._elsewhere = elsewhere
        self.look()
        self._tell_of(self._seen)

    def look(self) -> None:
        """Take them as they are now."""
        self._seen = self._values()

    def were_changed(self) -> bool:
        """Say whether some are others than at the last look, and take them as they are.

        Raises:
            StaleCode: if what has changed is of a file, of which ranks have loaded their own, and the mode is
                strict.
        """
        before, now = self._seen, self._values()
        if now == before:
            return False
        self._tell_of([name for name in {**before, **now} if before.get(name, now) != now.get(name, now)])
        self._seen = now
        return True

    def _values(self) -> dict[Any, Any]:
        found = Contents()
        for number, kind in enumerate(self._kinds):
            found.add((number, kind.__name__), kind)
        return dict(found.facts)

    def _tell_of(self, names: Iterable[tuple[Any, ...]]) -> None:
        """Say what of these ranks have otherwise in their modules."""
        found = ([part for part in name if type(part) is OfFile] for name in names)
        of_files = {parts[-1] for parts in found if parts}
        mode = self._elsewhere.mode() if of_files else ""
        if mode not in (_WARN, _STRICT):
            return
        texts = [*map(_text, self._elsewhere.other(of_files))]
        if texts and mode == _STRICT:
            raise StaleCode("; ".join(texts))
        for each in texts:
            warn_user(each)


def _text(name: OfFile) -> str:
    if name.is_code:
        return f"ranks have loaded other code of {name} than this program: mesh.sync() has them load it"
    return (
        f"{name} has another value on ranks than in this program; "
        f"mesh.execute(setattr, {name.owner}, {name.part!r}, {name}) sets it there"
    )
