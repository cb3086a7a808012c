"""Hosts of this machine that don't see its files: each has a mount namespace, a host name, and empty disks
where the workspace and the store would be.

For which one must be root.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from own_meshes import own_mesh

from monarch_nb._client import launch
from monarch_nb._client import session as sessions
from monarch_nb._host.starting import host_command
from monarch_nb._protocol.programs import Status
from monarch_nb.mesh import Mesh


@contextmanager
def hosts_apart(hidden: list[Path], *, size: str = "64m") -> Iterator[None]:
    """Have host processes that are started meanwhile see an empty disk of their own in the place of each
    folder.

    Skips the test where that isn't allowed.
    """
    tried = subprocess.run(
        ["unshare", "--mount", "--uts", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"no namespaces can be made here: {tried.stderr.strip()}")
    mounts = " && ".join(f"mount -t tmpfs -o size={size} tmpfs '{path}'" for path in hidden)
    wrap = ["unshare", "--mount", "--uts", "sh", "-c", f'{mounts} && hostname apart && exec "$@"', "sh"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "host_command", lambda: [*wrap, *host_command()])
        yield


@contextmanager
def mesh_apart(
    name: str,
    dims: Mapping[str, int],
    num_hosts: int,
    hidden: list[Path],
    *,
    size: str = "64m",
    **options: Any,
) -> Iterator[Mesh]:
    """Start a mesh whose hosts are apart, but for the controller."""
    hosts = hosts_apart(hidden, size=size)
    hosts.__enter__()
    with own_mesh(name, dims, num_hosts=num_hosts, **options) as mesh:
        hosts.__exit__(None, None, None)
        yield mesh


def files_of(mesh: Mesh, index: int) -> Path:
    """Return where the file system of a host can be seen from here."""
    rows = sessions.of_transport(mesh._transport).request(Status()).hosts
    pid = next(row.pid for row in rows if row.index == index)
    return Path(f"/proc/{pid}/root")
