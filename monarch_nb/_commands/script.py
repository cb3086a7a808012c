"""Runs a script, given the typed command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from monarch_nb._commands.parser import Namespace
from monarch_nb.mesh.script import prepare_script

if TYPE_CHECKING:
    from monarch_nb._protocol.script import Script
    from monarch_nb.mesh import Mesh


def prepared(
    mesh: Mesh, ranks: tuple[int, ...], arguments: Namespace, also: Mapping[str, str] | None = None
) -> Script:
    """Return the run described by a typed command line.

    Args:
        also: variables, where the command line has none of that name.
    """
    env = {**(also or {}), **dict(arguments.env or ())}
    part = mesh.part(ranks)
    return prepare_script(part, arguments.script, arguments.args, is_module=arguments.is_module, env=env)
