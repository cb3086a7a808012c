"""Variables that a module's methods read, these methods, and what its classes set.

Classes and functions of a notebook, or of a script itself, are sent by value: ranks have them, and the
variables that they read, as these were then. Of a module that can be imported each process has its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from monarch_nb._parallel.contents import Contents
from monarch_nb._tensor.elsewhere import Elsewhere
from monarch_nb._tensor.references import OfFile, is_users_class


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
        self._elsewhere.tell_of(parts[-1] for parts in found if parts)
