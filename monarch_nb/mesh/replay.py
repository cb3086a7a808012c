"""Restores the state that cells gave to ranks which were restarted: the journal's cells run there again."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_nb._protocol.states import CellStatus, EntryKind
from monarch_nb._shape import name_ranks
from monarch_nb.exceptions import MeshError

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh
    from monarch_nb.mesh.history import Entry

CELL_S = 60.0
"""Limit for a cell in a replay: one that waits for ranks that don't take part would wait for ever."""

_GROUP = "init_process_group"
_COLLECTIVES = frozenset(
    [
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "isend",
        "irecv",
        "monitored_barrier",
        "new_group",
        "recv",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
        "send",
    ]
)


def replay(mesh: Mesh, ranks: Sequence[int]) -> list[str]:
    """Run the cells of the journal again that have defined some ranks' state, in order; return the actions,
    each as a sentence.

    Those that failed are left out, as are those that only show something, those that make a process group,
    for healing has made it, and those in which the others would have to take part.
    """
    messages, done = [], []
    entries = mesh.history(1_000_000)
    for entry in entries:
        chosen = sorted(set(ranks) & set(entry.ran_on)) if defines_state(entry) else []
        if not chosen:
            continue
        reason = "it isn't kept: # nolog" if entry.record.nolog else _cannot(entry.source)
        if reason:
            messages.append(f"cell #{entry.n} was not replayed: {reason}")
            continue
        try:
            mesh.submit(
                entry.source, chosen, number=entry.number, timeout=CELL_S, replay_of=entry.n
            ).wait().raise_error()
        except MeshError as error:
            messages.append(f"the replay stopped at cell #{entry.n}: {str(error).splitlines()[0]}")
            break
        done.append(entry.n)
    if done:
        messages.insert(
            0, f"replayed on {name_ranks(ranks)}: cell{'s' * (len(done) > 1)} #{', #'.join(map(str, done))}"
        )
    pushed = [e.source for e in entries if e.kind == EntryKind.VARIABLES and e.record.values is not None]
    if pushed:
        messages.append(
            f"pushed values are not in the journal; push them again: {'; '.join(dict.fromkeys(pushed))}"
        )
    return messages


def _cannot(source: str) -> str:
    """Return why a cell can't run on new ranks alone; empty if it can, as far as its source shows."""
    if _GROUP in source:
        return "it creates the process group, which exists already"
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return ""
    called = {n.func.attr for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    if "dist" in source and called & _COLLECTIVES:
        return f"in {sorted(called & _COLLECTIVES)[0]} the other ranks would have to take part"
    return ""


def defines_state(entry: Entry) -> bool:
    """Say whether an entry is a cell that ended well and did more than display something."""
    if entry.kind != EntryKind.CELL or entry.status != CellStatus.OK or entry.record.replay_of:
        return False
    if entry.record.script or entry.record.always:
        return False  # its state ended with the script; new ranks have run it
    if entry.record.nolog:
        return True  # it may have changed state: unknown
    try:
        body = ast.parse(entry.source).body
    except SyntaxError:
        return True  # IPython's syntax: %load_ext, !pip
    return not all(_only_shows(statement) for statement in body)


def _only_shows(statement: ast.stmt) -> bool:
    """Say whether a statement is a bare name, a literal or a `print(...)`."""
    if isinstance(statement, ast.Pass):
        return True
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "print"
    return isinstance(value, ast.Name | ast.Attribute | ast.Constant | ast.JoinedStr)
