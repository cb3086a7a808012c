"""A host process that is started, and kept warm, before it's needed.

Importing torch takes most of a second. `%load_ext monarch_nb` starts a private host process whose zygote does
that in the background, so `%mesh start` finds it done. It ends with this program unless a mesh takes it over.
MONARCH_NB_PREWARM=0 turns this off. Where a mesh runs already, a notebook mostly goes on with that, after a
restart of its kernel, say: then there's no spare either.

Where an interpreter is kept warm for all programs of an environment (`warm`), that one is taken instead of
starting one.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from monarch_nb._client import launch, warm
from monarch_nb._client.connection_file import Connection
from monarch_nb._wire.process import is_running
from monarch_nb.exceptions import MeshError

_lock = threading.Lock()
_starting: threading.Thread | None = None
_ready: Connection | None = None


def prepare() -> None:
    """Start a spare in the background, unless there is one or the user has disabled that."""
    global _starting
    if os.environ.get("MONARCH_NB_PREWARM", "1") == "0":
        return
    with _lock:
        if _starting is None and _ready is None:
            _starting = threading.Thread(target=_start, name="monarch_nb-spare", daemon=True)
            _starting.start()


def _start() -> None:
    global _ready
    try:
        _ready = _new()
    except (MeshError, OSError):
        _ready = None  # a later start tries again, and reports the error


def _new(*, has_ranks: bool = True) -> Connection:
    """Return a controller that belongs to this program: one that was kept warm, or a new one."""
    wants = warm.wanted_s() is not None  # first: wrong settings are reported before anything is started
    found = warm.take_warm() or launch.start_controller(owner_pid=os.getpid(), warm=has_ranks)
    if wants:
        warm.keep_if_wanted()
    return found


def take_spare(*, has_ranks: bool = True) -> Connection:
    """Return a controller that belongs to this program: the spare, or a new one.

    Args:
        has_ranks: whether ranks are going to run beside it: then it makes ready for them at once.
    """
    global _starting, _ready
    with _lock:
        if _starting is not None:
            _starting.join()
        found, _ready, _starting = _ready, None, None
    if found is not None and is_running(found.pid, found.start_time):
        return found
    return _new(has_ranks=has_ranks)


def put_back(connection: Connection) -> None:
    """Keep a controller that was taken but isn't needed; this program isn't connected to it any more."""
    global _ready
    with _lock:
        if _ready is None and _starting is None:
            _ready = connection
            return
    if is_running(connection.pid, connection.start_time):
        with suppress(ProcessLookupError):
            os.kill(connection.pid, signal.SIGTERM)
