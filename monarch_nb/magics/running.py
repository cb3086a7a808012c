"""`%mesh start` of a mesh that runs: what was asked for is taken on where that can be done, and refused where it can't; nothing is dropped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from monarch_nb._shape import name_ranks
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.magics.arguments import Namespace
from monarch_nb.magics.starting import prepare_distributed, read_sizes
from monarch_nb.status import duration

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh

_ANSWER_S = 20.0
_PASSES_S = 1.0


def refuse_other(mesh: Mesh, arguments: Namespace) -> None:
    """See whether a running mesh is what was asked for.

    Raises:
        MeshUsageError: naming what differs, and how to get it.
    """
    otherwise = f"end it first: %mesh stop {mesh.name}; or choose another name"
    _refuse_size(mesh, arguments, otherwise)
    given = dict(arguments.env or ())
    has = mesh.started_with_env
    wrong = [name for name, value in given.items() if has.get(name) != value]
    if wrong:
        name = wrong[0]
        there = f"{name}={has[name]}" if name in has else f"no {name}"
        raise MeshUsageError(
            f"start: mesh {mesh.name!r} runs already, and was started with {there}, not {name}={given[name]}. For new values {otherwise}; "
            f"or set it in a cell: %%mesh, then os.environ[{name!r}] = {given[name]!r}"
        )
    for flag, is_given in (("--spares", arguments.spares), ("--spawn", arguments.spawn)):
        if is_given:
            raise MeshUsageError(f"start: mesh {mesh.name!r} runs already, and {flag} is settled when a mesh starts. For that, {otherwise}")


def _refuse_size(mesh: Mesh, arguments: Namespace, otherwise: str) -> None:
    dims, num_hosts = read_sizes(arguments)
    wanted = {**({"hosts": num_hosts} if num_hosts else {}), **(dims or {})}
    has = dict(mesh.sizes)
    same_names = dims is None or set(wanted) == set(has)
    if same_names and all(has.get(name) == size for name, size in wanted.items()):
        return
    asked = ",".join(f"{n}={s}" for n, s in wanted.items())
    resize = f"Give it that size: %mesh resize --name {mesh.name} {asked}; or " if set(wanted) <= set(has) else "For that, "
    sizes = ",".join(f"{n}={s}" for n, s in has.items())
    raise MeshUsageError(f"start: mesh {mesh.name!r} runs already with {sizes}, not {asked}. {resize}{otherwise}")


def take_on(mesh: Mesh, arguments: Namespace) -> str:
    """Give a running mesh what can be changed of what was asked for; return what there is to say about it."""
    said = []
    if arguments.on_failure is not None:
        mesh.on_failure(arguments.on_failure)
        said.append(f"on failure: {arguments.on_failure}")
    if arguments.idle_timeout is not None:
        mesh.set_lease(arguments.idle_timeout)
        said.append(f"it ends after {duration(arguments.idle_timeout)} without a client and a running cell")
    if arguments.init_process_group is not None:
        said.append(_take_on_group(mesh, arguments.init_process_group, arguments.group_timeout))
    return "".join(f"; {each}" for each in said)


def _take_on_group(mesh: Mesh, backend: str, timeout_s: float) -> str:
    busy = _busy(mesh)
    if busy:
        one = len(busy) == 1
        return f"--init-process-group was not looked at, for {name_ranks(busy)} {'is' if one else 'are'} busy: run this again afterwards"
    found = mesh.execute(_backend_of_group).get(_ANSWER_S)
    has = set(found.values())
    if has == {""}:
        return f"torch.distributed is ready ({prepare_distributed(mesh, backend, timeout_s)})"
    if len(has) > 1 or (backend and has != {backend}):
        there = "; ".join(f"{name_ranks([r for r, b in enumerate(found.values()) if b == each])}: {each or 'none'}" for each in sorted(has))
        raise MeshUsageError(
            f"start: mesh {mesh.name!r} has process groups already ({there}), and can't get another one. End them in a cell: "
            "%%mesh, then torch.distributed.destroy_process_group(); then start again"
        )
    return f"torch.distributed is ready ({has.pop()}), as it was"


def _busy(mesh: Mesh) -> list[int]:
    """Return ranks that do something, and go on doing it for a while: what a rank has just ended may still be seen."""
    deadline = time.monotonic() + _PASSES_S
    while busy := [r.rank for r in mesh.status().ranks if r.state != "idle"]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return busy


def _backend_of_group() -> str:
    import sys

    dist = sys.modules.get("torch.distributed")
    return str(dist.get_backend()) if dist is not None and dist.is_available() and dist.is_initialized() else ""
