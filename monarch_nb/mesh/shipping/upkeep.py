"""Maintains stores of environments: cleans this machine's, or moves it, and prepares one for another
machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from monarch_nb._sync.env.clean import clean
from monarch_nb._sync.env.local import export
from monarch_nb._sync.env.store import default_store
from monarch_nb._units import size_text
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh.shipping.bootstrap import ArrivedPart, place_on
from monarch_nb.mesh.shipping.progress import Progress
from monarch_nb.mesh.shipping.sending import scan_here, tried_modules, with_scan


def clean_here() -> str:
    """Remove what nobody uses from this machine's store; return what was done, as text.

    Raises:
        EnvironmentSyncError: if there's no store, or something is being sent to it.
    """
    root = default_store()
    done = clean(root)
    num = len(done.prefixes)
    files = f"{done.num_objects} files ({size_text(done.num_bytes)})"
    return (
        f"{root}: {num} environment{'s' * (num != 1)}, {files} removed; in use: "
        f"{', '.join(done.in_use) or 'none'}"
    )


def export_here(folder: str, *, verify: bool = False) -> str:
    """Make the environment of this program in a store at `folder`; return its interpreter, as text.

    Raises:
        EnvironmentSyncError: if it can't be made there, or doesn't work.
    """
    root = os.path.abspath(os.path.expanduser(folder))
    advice = "monarch-nb sync --env --export DIRECTORY names another"
    prefix = export(root, scan_here(verify=verify), tried_modules(), advice)
    return f"environment {prefix.id[:12]} is at {prefix.root}: {prefix.python}"


def check_source(machines: Sequence[str], *, from_index: bool) -> None:
    """Raise a `MeshUsageError` if machines without a mesh shall take packages from an index: that's done by
    the uv or pip of a host.
    """
    if machines and from_index:
        raise MeshUsageError(
            f"sync: --to {machines[0]!r} is sent everything, and --from index is for hosts of a mesh, which "
            "have an uv or pip of their own: one of them at a time"
        )


def send_to(
    machines: Sequence[str],
    *,
    same_path: bool = False,
    dry_run: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> ArrivedPart:
    """Make the environment of this program on machines that need `sh` and `tar` only; no mesh is needed.

    Args:
        machines: names of hosts for ssh, or commands that run a shell.
        same_path: make a link at the environment's own path on each machine.
        dry_run: only say what would be sent at most.
        verify: read every file here.

    Raises:
        MeshUsageError: if no command can be made of a machine's name.
        EnvironmentSyncError: if the environment can't be sent.
    """
    return with_scan(
        lambda scanned: place_on(
            machines, scanned, tried_modules(), same_path=same_path, dry_run=dry_run, progress=progress
        ),
        verify=verify,
    )
