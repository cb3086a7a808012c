"""`%mesh run`: a script on the ranks, as torchrun would run it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from monarch_nb._commands.arguments import SCRIPT
from monarch_nb._commands.parser import Namespace, Parser
from monarch_nb._commands.script import prepared
from monarch_nb._magics.cell import cell_number, show_cell, start_cell
from monarch_nb._magics.state import State

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh
    from monarch_nb.mesh.history import Entry


def run(state: State, arguments: Namespace) -> None:
    """Run a script on the ranks, as torchrun would."""
    mesh = state.mesh(arguments.name)
    ranks = mesh.select(arguments.ranks)
    number = cell_number(state.shell)
    script = prepared(mesh, ranks, arguments)
    if arguments.background:
        state.last_async[mesh.name] = start_cell(
            mesh, script.line, ranks, number, arguments.group, arguments.timeout, script
        )
        return
    show_cell(
        mesh,
        script.line,
        ranks,
        number=number,
        group=arguments.group,
        timeout=arguments.timeout,
        script=script,
    )


def rerun_script(mesh: Mesh, entry: Entry, ranks: tuple[int, ...]) -> None:
    """Run a script of the journal again."""
    parser = Parser(prog="%mesh run")
    for each in SCRIPT:
        each.add_to(parser)
    again = parser.parse_args(shlex.split(entry.source)[2:])
    script = prepared(mesh, ranks, again)
    show_cell(mesh, entry.source, ranks, number=entry.number, rerun_of=entry.n, script=script)
