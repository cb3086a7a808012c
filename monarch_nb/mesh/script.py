"""Runs scripts on a mesh as torchrun would, on warm ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from monarch_nb._protocol.script import Script
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.exceptions import MeshUsageError


def prepare_script(
    ranks: ProcMesh,
    target: str | os.PathLike[str],
    args: Sequence[object] = (),
    *,
    is_module: bool = False,
    env: Mapping[str, str] | None = None,
) -> Script:
    """Return a script's run with a rendezvous of its own, opened by the first of `ranks`.

    Raises:
        MeshUsageError: if that's no script.
    """
    typed = os.fspath(target) if isinstance(target, str | os.PathLike) else ""
    if not typed or "\0" in typed:
        raise MeshUsageError(
            f"expected a script's file, as in train.py, or with -m a module's name; not {target!r}"
        )
    if env is not None and not isinstance(env, Mapping):
        raise MeshUsageError(f"env takes variables by name, as in {{'LOG': '1'}}; not {env!r}")
    for name in env or {}:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise MeshUsageError(f"expected the name of an environment variable, not {name!r}")
    variables = {str(name): str(value) for name, value in (env or {}).items()}
    return Script(
        typed, tuple(map(str, args)), is_module, variables, os.getcwd(), rendezvous=ranks.open_rendezvous()
    )
