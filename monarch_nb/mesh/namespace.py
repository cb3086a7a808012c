"""The namespace of cells on the ranks of a mesh: pushes variables to it, and pulls them from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch_nb._protocol.journal import JournalEntry, Note
from monarch_nb._protocol.states import EntryKind
from monarch_nb._protocol.work import Work
from monarch_nb._shape import format_ranks
from monarch_nb.actor.checked import checks_arguments
from monarch_nb.actor.handle import is_on_other_hosts, session_of
from monarch_nb.actor.proc_mesh import ProcMesh, work_on
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.exceptions import ActorError, MeshUsageError
from monarch_nb.mesh.export import literals
from monarch_nb.mesh.scatter import parts_of
from monarch_nb.mesh.variables import Difference, Variables, check_name, explained, find_difference

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh


@checks_arguments()
class Namespace:
    """The variables of cells on the ranks of a mesh: `mesh.push(...)` is `mesh.variables.push(...)`."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def push(self, variables: Mapping[str, Any], ranks: str | Sequence[int] = "all") -> None:
        """Set variables in the cells' namespace of ranks."""
        mesh = self._mesh
        if not isinstance(variables, Mapping):
            raise MeshUsageError(f"push takes variables by name, as in {{'lr': 0.1}}; not {variables!r}")
        for name in variables:
            check_name(name)
        _send(mesh.part(ranks), variables)()
        _note(mesh, "push", list(variables), mesh.select(ranks), values=literals(variables))

    def scatter(self, name: str, value: Any, ranks: str | Sequence[int] = "all", *, dim: int = 0) -> None:
        """Give each rank a part of a value, as a variable of that name; the sizes of parts differ by at most
        one.

        Args:
            value: a tensor, an array, a list; or a table, whose rows are split: Arrow, Polars, pandas, a
                Hugging Face dataset, a relation of DuckDB, of which ranks get Arrow tables. What arrives is
                of the same type.
            dim: of a tensor or an array.

        Raises:
            MeshUsageError: if it can't be split.

        Example:
            >>> mesh.scatter("frame", polars.read_parquet("data.parquet"))     # doctest: +SKIP
        """
        check_name(name)
        mesh = self._mesh
        chosen = mesh.select(ranks)
        parts = zip(chosen, parts_of(name, value, len(chosen), dim), strict=True)
        waits = [_send(mesh.part([rank]), {name: part}) for rank, part in parts]
        for wait in waits:
            wait()
        _note(mesh, "scatter", [name], chosen, values={})

    def pull(self, *names: str, ranks: str | Sequence[int] = "all") -> ValueMesh[Any]:
        """Return variables of the cells' namespace: one value per rank, or a dict for several names.

        Raises:
            UnknownVariable: (an ActorError and a NameError) if a rank has no such variable.
        """
        mesh = self._mesh
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

    def vars(self, ranks: str | Sequence[int] = "all", names: Sequence[str] = ()) -> Variables:
        """Return the variables of ranks in the cells' namespace: type, shape, dtype, device, norm; and where
        they differ.

        Args:
            names: only these.
        """
        mesh = self._mesh
        chosen = mesh.select(ranks)
        found = work_on(mesh.part(chosen), Work.VARS, list(names), "vars").get()
        return Variables(dict(zip(chosen, found.values(), strict=True)))

    def diff(self, name: str, ranks: str | Sequence[int] = "all") -> Difference:
        """Return the differences between ranks in a variable: a tensor, a module, a state dict, or anything
        else.

        Raises:
            UnknownVariable: (an ActorError and a NameError) if a rank has no such variable.
        """
        check_name(name.partition(".")[0].partition("[")[0])
        return find_difference(self._mesh, name, self._mesh.select(ranks))


def _send(part: ProcMesh, variables: Mapping[str, Any]) -> Callable[[], Any]:
    """Send variables to ranks; return what waits until they have them."""
    if is_on_other_hosts(part):
        return partial(_host_broadcast().push, part, variables)
    return work_on(part, Work.PUSH, dict(variables), f"push of {', '.join(variables)}").get


def _note(
    mesh: Mesh, kind: str, names: Sequence[str], ranks: tuple[int, ...], values: dict[str, str] | None = None
) -> None:
    """Put the change of a variable into the journal."""
    source = f"%mesh {kind} {', '.join(names)}"
    entry = JournalEntry(
        EntryKind.VARIABLES, source=source, ranks=format_ranks(ranks), names=list(names), values=values
    )
    session_of(mesh).tell(Note(entry))


def _host_broadcast() -> Any:
    """Return the service that brings big arrays to other machines, loaded if there are other machines."""
    from monarch_nb.rdma.broadcast import hosts

    return hosts
