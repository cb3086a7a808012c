"""`%mesh run`: a script on the ranks, as torchrun would run it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from monarch_nb.magics.arguments import Namespace, Parser, add_script_arguments, seconds
from monarch_nb.magics.cell import cell_number, show_cell, start_cell
from monarch_nb.magics.state import State
from monarch_nb.mesh.script import prepare_script

if TYPE_CHECKING:
    from monarch_nb._protocol.script import Script
    from monarch_nb.mesh import Mesh
    from monarch_nb.mesh.history import Entry


def add_run_arguments(add: Any) -> None:
    """Add what `%mesh run` takes."""
    add("--async", dest="background", action="store_true", help="return at once; %%mesh result waits for it")
    add("--timeout", "-t", type=seconds, metavar="T", help="90 or 90s; then the ranks are interrupted")
    add(
        "--group",
        "-g",
        choices=("fold", "rank", "order", "none"),
        default="fold",
        help="how lines are shown: as %%%%mesh",
    )
    add_script_arguments(add)


def run(state: State, arguments: Namespace) -> None:
    """Run a script on the ranks as torchrun would, as in `%mesh run train.py --lr 0.1`; ranks stay warm
    for the next.
    """
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


def prepared(mesh: Mesh, ranks: tuple[int, ...], arguments: Namespace) -> Script:
    """Return the run of a script that was typed."""
    env = dict(arguments.env or ())
    part = mesh.part(ranks)
    return prepare_script(part, arguments.script, arguments.args, is_module=arguments.is_module, env=env)


def rerun_script(mesh: Mesh, entry: Entry, ranks: tuple[int, ...]) -> None:
    """Run a script of the journal again."""
    parser = Parser(prog="%mesh run")
    add_script_arguments(parser.add_argument)
    again = parser.parse_args(shlex.split(entry.source)[2:])
    script = prepared(mesh, ranks, again)
    show_cell(mesh, entry.source, ranks, number=entry.number, rerun_of=entry.n, script=script)
