"""Starts the zygote. A host process does this first, because the zygote's imports take longest. Imports
little itself.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from monarch_nb._wire import open_files

if TYPE_CHECKING:
    from monarch_nb._protocol.environment import RankEnvironment

# The second statement: a file of the user's must not take the place of a module of Python's. Not -P, which
# interpreters that ranks start would inherit.
_CODE = (
    "import sys; sys.path[:] = [p for p in sys.path if p];"
    "import json; a = json.loads(sys.argv[1]); sys.path[:] = a['path'];"
    "from monarch_nb._rank.zygote import main; main(a['fd'], a['path'], a['directory'])"
)

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "1")
"""numpy's OpenBLAS starts a thread per core when it's imported, and threads don't survive a fork."""


class Zygote(NamedTuple):
    """A zygote that was started, with this process' end of the connection to it."""

    process: subprocess.Popen[bytes]
    link: socket.socket


def start_zygote(
    sys_path: list[str], directory: str, environment: RankEnvironment | None = None, held: Sequence[int] = ()
) -> Zygote:
    """Start a zygote that imports from `sys_path`.

    Args:
        directory: where this host process's sockets lie, or will.
        environment: whose interpreter it runs, if not ours.
        held: descriptors that it and its forks keep open.

    Raises:
        OSError: if the interpreter can't be started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argument = json.dumps({"path": sys_path, "fd": theirs.fileno(), "directory": directory})
    variables = dict(os.environ) if environment is None else environment.variables(os.environ)
    variables.setdefault(*ONE_THREAD)
    process = subprocess.Popen(
        [sys.executable if environment is None else environment.python, "-c", _CODE, argument],
        pass_fds=[theirs.fileno(), *held],
        env=variables,
        stdin=subprocess.DEVNULL,
        # this process' own stdout is the pipe on which the client waits for readiness
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if not os.environ.get("MONARCH_NB_HOST_LOG") else None,
    )
    open_files.restore_for(process.pid)
    theirs.close()
    return Zygote(process, ours)
