"""Monarch's `gather_mount`, which mounts directories of hosts here: not supported, since this package mounts
nothing.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["gather_mount"]


def gather_mount(host_mesh: Any, remote_mount_point: str, local_mount_point: str) -> NoReturn:
    """Say what to use instead of a mount.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        f"gather_mount: monarch_nb mounts no file systems (FUSE), so {remote_mount_point!r} can't be "
        f"had at {local_mount_point!r}. What ranks print is here anyway: monarch-nb logs. Files: "
        "exec_command(hosts, ['cat', PATH]), an endpoint that returns them, or a shared file system"
    )
