"""The list of paths for bytes, the best first, and the forced one, if any."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch_nb.rdma.data_plane import DataPlane
    from monarch_nb.rdma.path import Path

GROUP = "monarch_nb.rdma_paths"
VARIABLE = "MONARCH_NB_RDMA_PATH"
ENCRYPTED = "MONARCH_NB_RDMA_ENCRYPTED"
"""If set, only the mesh's messages carry bytes to other machines: tcp and verbs don't encrypt."""
OURS = (
    ("local", "local", "LocalPath"),
    ("cuda_ipc", "cuda_ipc", "CudaIpcPath"),
    ("shm", "shm", "ShmPath"),
    ("verbs", "verbs.path", "VerbsPath"),
    ("tcp", "tcp.path", "TcpPath"),
    ("message", "message", "MessagePath"),
)
"""The paths in the order in which they are tried; paths of other packages come after `shm`."""

_forced: ContextVar[str | None] = ContextVar("monarch_nb_rdma_path", default=None)


def load_paths(plane: DataPlane) -> dict[str, Path]:
    """Create all paths of this process."""
    ours = {
        name: getattr(importlib.import_module(f"{__name__}.{module}"), cls)(plane)
        for name, module, cls in OURS
    }
    from importlib.metadata import entry_points  # with what it imports, 10 ms that only ranks pay

    theirs = {}
    for point in entry_points(group=GROUP):
        try:
            theirs[point.name] = point.load()(plane)
        except Exception as error:  # another package's code: the mesh works without it
            warnings.warn(
                f"the RDMA path {point.name!r} ({point.value}) can't be used: {error}", stacklevel=2
            )
    near = {name: ours.pop(name) for name in ("local", "cuda_ipc", "shm")}
    return {**near, **theirs, **ours}


def chosen() -> str | None:
    """Return the path that is forced, by `use_path`, or for the process by `MONARCH_NB_RDMA_PATH`; None if
    none is.
    """
    return _forced.get() or os.environ.get(VARIABLE) or None


def only_encrypted() -> bool:
    """Return whether bytes may leave the machine only encrypted."""
    return os.environ.get(ENCRYPTED, "") not in ("", "0")


@contextlib.contextmanager
def use_path(name: str | None) -> Iterator[None]:
    """Use this path and no other for all transfers that start within the block; None: choose automatically
    again.

    Example:
        >>> with use_path("tcp"):                       # doctest: +SKIP
        ...     print(buffer.read_into(tensor).get())
        read 64 MiB by tcp in 51 ms, 1.31 GB/s
    """
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)
