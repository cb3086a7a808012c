"""This machine's store of environments: cleaned, or made anew in another place."""

from __future__ import annotations

import os

from monarch_nb.mesh.shipping.sending import scan_here, tried_modules
from monarch_nb.sync.env.clean import clean
from monarch_nb.sync.env.local import export
from monarch_nb.sync.env.store import default_store
from monarch_nb.units import size_text


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
    prefix = export(os.path.abspath(os.path.expanduser(folder)), scan_here(verify=verify), tried_modules())
    return f"environment {prefix.id[:12]} is at {prefix.root}: {prefix.python}"
