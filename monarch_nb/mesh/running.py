"""`start` with the name of a running mesh: each option is applied where that is possible, and refused where
it isn't; none is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from monarch_nb._protocol.programs import SetOwner
from monarch_nb._protocol.states import StartMethod
from monarch_nb._units import duration
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshUsageError

if TYPE_CHECKING:
    from monarch_nb._runtime.supervision import MeshFailure
    from monarch_nb.mesh.core import Mesh


class Asked(msgspec.Struct, frozen=True):
    """The options that a caller of `start` has given; None: not given. The fields are the parameters of
    `start`.
    """

    dims: Mapping[str, int] | None = None
    num_hosts: int = 0
    env: Mapping[str, str] | None = None
    idle_timeout_s: float | None = None
    method: str = StartMethod.FORK
    on_failure: str | Callable[[MeshFailure], Any] | None = None
    max_restarts: int = 5
    num_spares: int = 0
    with_program: bool | None = None


def refuse_other(mesh: Mesh, asked: Asked) -> None:
    """Raise if a running mesh doesn't match the request.

    Raises:
        MeshUsageError: naming what differs, and how to get it.
    """
    otherwise = f"end it first: %mesh stop {mesh.name}; or choose another name"
    _refuse_size(mesh, asked, otherwise)
    _refuse_environment(mesh, asked.env or {}, otherwise)
    for what, is_given in (
        ("--spares (num_spares=)", asked.num_spares),
        ("--spawn (method='spawn')", asked.method != StartMethod.FORK),
    ):
        if is_given:
            raise MeshUsageError(
                f"start: mesh {mesh.name!r} runs already, and {what} is fixed when a mesh starts. "
                f"For that, {otherwise}"
            )
    _refuse_owner(mesh, asked.with_program, otherwise)


def _refuse_size(mesh: Mesh, asked: Asked, otherwise: str) -> None:
    wanted = {**({"hosts": asked.num_hosts} if asked.num_hosts else {}), **(asked.dims or {})}
    has = dict(mesh.sizes)
    same_names = asked.dims is None or set(wanted) == set(has)
    if same_names and all(has.get(name) == size for name, size in wanted.items()):
        return
    sizes, others = (",".join(f"{n}={s}" for n, s in each.items()) for each in (has, wanted))
    resize = (
        f"Give it that size: %mesh resize --name {mesh.name} {others}; or "
        if set(wanted) <= set(has)
        else "For that, "
    )
    raise MeshUsageError(
        f"start: mesh {mesh.name!r} runs already with {sizes}, not {others}. {resize}{otherwise}"
    )


def _refuse_environment(mesh: Mesh, env: Mapping[str, str], otherwise: str) -> None:
    has = mesh.started_with_env if env else {}
    for name, value in env.items():
        if has.get(name) == value:
            continue
        there = f"{name}={has[name]}" if name in has else f"no {name}"
        raise MeshUsageError(
            f"start: mesh {mesh.name!r} runs already, and was started with {there}, not "
            f"{name}={value}. For new values {otherwise}; or set it in a cell: %%mesh, then "
            f"os.environ[{name!r}] = {value!r}"
        )


def _refuse_owner(mesh: Mesh, with_program: bool | None, otherwise: str) -> None:
    """Raise if the mesh is to end with this program, but already ends with another one."""
    owner = mesh.status().owner_pid if with_program else None
    if owner is not None and owner != os.getpid():
        raise MeshUsageError(
            f"start: mesh {mesh.name!r} runs already, and ends with another program (pid {owner}), so "
            "it can't end with this one (--with-kernel, with_program=True). Have it end with none: "
            f"%mesh start {mesh.name} --keep; or {otherwise}"
        )


def take_on(mesh: Mesh, asked: Asked) -> list[str]:
    """Apply the changeable options of a request to a running mesh; return messages about it."""
    messages = []
    if asked.on_failure is not None:
        mesh.on_failure(asked.on_failure, max_restarts=asked.max_restarts)
        messages.append(f"on failure: {asked.on_failure}")
    if asked.idle_timeout_s is not None:
        mesh.set_lease(asked.idle_timeout_s)
        messages.append(f"it ends after {duration(asked.idle_timeout_s)} without a client and a running cell")
    if asked.with_program is not None:
        session_of(mesh).request(SetOwner(os.getpid() if asked.with_program else None))
        messages.append("it ends with this kernel" if asked.with_program else "it ends with no kernel")
    return messages
