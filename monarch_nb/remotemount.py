"""Monarch's `remotemount`, which mounts a directory of this machine on hosts: not supported, since this
package mounts nothing.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["remote_mount", "remotemount"]


def remotemount(host_mesh: Any, sourcepath: str, mntpoint: str | None = None) -> NoReturn:
    """Say what to use instead of a mount.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        f"remote_mount: monarch_nb mounts no file systems (FUSE), so {sourcepath!r} can't be had at "
        f"{mntpoint or sourcepath!r} on other hosts. Functions and classes of this program travel by "
        "themselves; put packages and data on a shared file system, or send them: an endpoint, or "
        "RDMABuffer"
    )


remote_mount = remotemount
