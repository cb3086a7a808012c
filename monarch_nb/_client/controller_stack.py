"""Says what a controller that doesn't answer is doing."""

from __future__ import annotations

import os
import time

from monarch_nb._client.connection_file import Connection
from monarch_nb._host.agent.dump_request import request_dump
from monarch_nb._host.agent.dumped import main_frames
from monarch_nb._wire import address
from monarch_nb._wire.process import process_trouble

_WRITE_S = 1.0
_MAX_FRAMES = 5


def what_it_does(controller: Connection) -> str:
    """Return a sentence, such as "it waits in the kernel for a device or a file system", or one with its
    innermost functions: "it stands in write (output.py:94), called from note (journal.py:33)".
    """
    trouble = process_trouble(controller.pid)
    path = address.dump_path(controller.directory, address.CONTROLLER)
    writing = request_dump(controller.pid, path)
    if isinstance(writing, str):
        return f"it {trouble}" if trouble else writing
    frames = main_frames(writing.finish(time.monotonic() + _WRITE_S), writing.main_ident)[:_MAX_FRAMES]
    where = [f"{frame.function} ({os.path.basename(frame.file)}:{frame.line})" for frame in frames]
    stands = f"it stands in {', called from '.join(where)}" if where else "it doesn't say where it stands"
    return f"it {trouble}; {stands}" if trouble else stands
