"""The verbs of `%mesh`: the table's commands, and the notebook's own implementations of some of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from monarch_nb._commands.command import Command
from monarch_nb._commands.parser import Namespace
from monarch_nb._commands.table import IN_NOTEBOOKS
from monarch_nb._magics import (
    auto,
    clusters,
    data,
    debug,
    journal,
    lifecycle,
    reload,
    script,
    settings,
    sync,
    verb_help,
)
from monarch_nb._magics.state import State
from monarch_nb.exceptions import MeshUsageError

Verb = Callable[[State, Namespace], Any]


def run_shared(command: Command, state: State, arguments: Namespace) -> Any:
    """Run a command of the table on a mesh, and show the result; a result that displays itself is
    returned.
    """
    assert command.run is not None
    mesh = state.mesh(arguments.name)
    loss = "" if getattr(arguments, "force", True) else command.loss(mesh, arguments)
    if loss and not _confirm(f"{loss}. {command.name.capitalize()}?", command, arguments):
        print("nothing was changed")
        return None
    found = command.run(mesh, arguments)
    if command.is_rich:
        return found
    text = command.text(found)
    if text:
        print(text)
    return None


def _confirm(question: str, command: Command, arguments: Namespace) -> bool:
    """Ask for confirmation; where nobody can answer, say what to type instead.

    Raises:
        MeshUsageError: if there is no stdin.
    """
    try:
        answer = input(f"{question} [y/N] ")
    except (EOFError, NotImplementedError, RuntimeError):  # StdinNotImplementedError is either, by version
        raise MeshUsageError(
            f"{question} There is no prompt to answer here; without a question: %mesh {command.name} -f "
            f"{arguments.typed}"
        ) from None
    return answer.strip().lower() in ("y", "yes")


_OWN: dict[str, Verb] = {
    "start": lifecycle.start,
    "list": lifecycle.list_,
    "clusters": clusters.clusters,
    "queue": clusters.queue,
    "cancel": clusters.cancel,
    "attach": lifecycle.attach,
    "detach": lifecycle.detach,
    "use": lifecycle.use,
    "status": lifecycle.status,
    "top": lifecycle.top,
    "stop": lifecycle.stop,
    "debug": debug.debug,
    "break": debug.break_,
    "set": settings.set_,
    "run": script.run,
    "push": data.push,
    "pull": data.pull,
    "scatter": data.scatter,
    "vars": data.vars_,
    "diff": data.diff,
    "history": journal.history,
    "rerun": journal.rerun,
    "result": journal.result,
    "auto": auto.auto,
    "reload": reload.reload,
    "sync": sync.sync,
    "help": verb_help.help_,
}
"""Verbs that need more than a mesh: the notebook's variables, its cells, the mesh in use."""

VERBS: dict[str, Verb] = {
    name: _OWN[name] if name in _OWN else partial(run_shared, command)
    for name, command in IN_NOTEBOOKS.items()
}
