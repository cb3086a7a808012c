"""Kernels whose sockets are files: in a directory of this test run's own, not in the one where the tests
were started.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

from jupyter_client.manager import KernelManager

_numbers = itertools.count()


def ipc_manager(**options: Any) -> KernelManager:
    """Return a manager of a kernel, not started yet; `options` are KernelManager's."""
    where = os.path.join(os.environ["XDG_RUNTIME_DIR"], f"kernel{os.getpid()}-{next(_numbers)}")
    return KernelManager(transport="ipc", ip=where, **options)
