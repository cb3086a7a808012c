"""Variables of the user's program that a module's methods read.

Classes and functions of a notebook, or of a script itself, are sent by value: ranks have them, and the
variables that they read, as these were then. Modules that can be imported have variables of their own in each
process.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any

from torch import nn

from monarch_nb._frames.owner import frames_from, users_index
from monarch_nb._parallel.contents import Contents
from monarch_nb._tensor.references import ModuleVariable

_PROGRAM = "__main__"


class Variables:
    """The variables of the program that the methods of some layers read, these methods, and what the layers'
    classes set.

    Args:
        layers: the layers.
    """

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        kinds = {kind for layer in layers for kind in type(layer).__mro__ if kind.__module__ == _PROGRAM}
        self._kinds = sorted(kinds, key=id)
        self._said: set[str] = set()
        self.look()

    def look(self) -> None:
        """Take them as they are now."""
        self._seen = self._values()

    def were_changed(self) -> bool:
        """Say whether some are others than at the last look, and take them as they are."""
        before, self._seen = self._seen, self._values()
        if self._seen == before:
            return False
        names = {**before, **self._seen}
        changed = [name for name in names if before.get(name, names) != self._seen.get(name, names)]
        of_modules = [next((p for p in name if type(p) is ModuleVariable), None) for name in changed]
        self._warn_of([each for each in of_modules if each is not None])
        return None in of_modules

    def _values(self) -> dict[Any, Any]:
        found = Contents()
        for number, kind in enumerate(self._kinds):
            found.add((number, kind.__name__), kind)
        return dict(found.facts)

    def _warn_of(self, variables: Iterable[ModuleVariable]) -> None:
        """Say what ranks don't hear of: their modules have variables of their own."""
        for each in variables:
            if each in self._said:
                continue
            self._said.add(each)
            module = each.rpartition(".")[0]
            warnings.warn(
                f"{each} was changed in this program; ranks import {each.module.__name__} themselves, and "
                f"have their own {each.part}. Unless it was set there, too: mesh.execute(setattr, {module}, "
                f"{each.part!r}, {each})",
                stacklevel=(users_index(frames_from(sys._getframe())) or 0) + 1,
            )
