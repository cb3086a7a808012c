"""Start a host process."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from monarch_nb._host.warming import start_zygote

if TYPE_CHECKING:
    from monarch_nb._host.agent.process import HostProcess


def main() -> None:
    """Run a host process; its configuration comes as JSON on standard input, readiness is told on fd 1."""
    config = json.loads(sys.stdin.buffer.read())
    zygote = start_zygote(config["sys_path"], config["directory"]) if config.get("warm", True) else None
    from monarch_nb import sources
    from monarch_nb._host.agent.agent import HostAgent  # takes half a second, while the zygote imports, too
    from monarch_nb._host.controller.controller import ControllerProcess

    sources.guard()
    process: HostProcess = (
        ControllerProcess(config, zygote) if config["host"] == 0 else HostAgent(config, zygote)
    )
    try:
        os.write(1, b"ready\n")
    except OSError:  # who started us is gone already
        process.loop.call_later(0, process.shut_down)
    log = os.open(config.get("log") or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    status = 1
    try:
        process.run()
        while process.successor is not None:
            process = HostAgent(process.successor)
            process.run()
        status = 0
    finally:
        # Interpreter shutdown would wait for whatever socket an error has left open.
        os._exit(status)
