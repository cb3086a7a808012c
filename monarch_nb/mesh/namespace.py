"""The cells' namespace on the ranks of a mesh: variables go there, and come from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb._protocol.journal import Note
from monarch_nb._protocol.states import EntryKind
from monarch_nb._protocol.work import Work
from monarch_nb._shape import format_ranks
from monarch_nb.actor.handle import is_on_other_hosts, session_of
from monarch_nb.actor.proc_mesh import work_on
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.exceptions import ActorError
from monarch_nb.mesh.export import literals
from monarch_nb.mesh.variables import Variables, check_name, explained

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh


def push(mesh: Mesh, variables: Mapping[str, Any], ranks: str | Sequence[int]) -> None:
    """Set variables on ranks; see `Mesh.push`."""
    for name in variables:
        check_name(name)
    part = mesh.part(ranks)
    if is_on_other_hosts(part):
        _host_broadcast().push(part, variables)
    else:
        work_on(part, Work.PUSH, dict(variables), f"push of {', '.join(variables)}").get()
    _note(mesh, "push", list(variables), mesh.select(ranks), values=literals(variables))


def pull(mesh: Mesh, names: Sequence[str], ranks: str | Sequence[int]) -> ValueMesh[Any]:
    """Return variables of ranks; see `Mesh.pull`."""
    for name in names:
        check_name(name)
    chosen = mesh.select(ranks)
    part = mesh.part(ranks) if ranks != "all" else mesh
    try:
        found: ValueMesh[Any] = (
            _host_broadcast().pull(part, names)
            if is_on_other_hosts(part)
            else work_on(part, Work.PULL, list(names), f"pull of {', '.join(names)}").get()
        )
    except ActorError as error:
        raise explained(error, chosen) from None
    _note(mesh, "pull", names, chosen)
    return found.map(lambda values: values[names[0]]) if len(names) == 1 else found


def described(mesh: Mesh, ranks: str | Sequence[int], names: Sequence[str]) -> Variables:
    """Return what ranks hold; see `Mesh.vars`."""
    chosen = mesh.select(ranks)
    found = work_on(mesh.part(chosen), Work.VARS, list(names), "vars").get()
    return Variables(dict(zip(chosen, found.values(), strict=True)))


def _note(mesh: Mesh, kind: str, names: Sequence[str], ranks: tuple[int, ...], **fields: Any) -> None:
    """Put it into the journal."""
    source = f"%mesh {kind} {', '.join(names)}"
    entry = {"source": source, "ranks": format_ranks(ranks), "names": list(names), **fields}
    session_of(mesh).tell(Note(EntryKind.VARIABLES, entry))


def _host_broadcast() -> Any:
    """Return what brings big arrays to other machines: loaded where there are any."""
    from monarch_nb.rdma.broadcast import hosts

    return hosts
