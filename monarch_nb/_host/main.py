"""The main function of a host process."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from monarch_nb._host.config import HostConfig
from monarch_nb._host.warming import Zygote, start_zygote
from monarch_nb._wire import open_files
from monarch_nb._wire.address import FIRST_MEMBER, dump_path, host_proc

if TYPE_CHECKING:
    from monarch_nb._host.agent.process import HostProcess
    from monarch_nb._host.relay import Relay


def main() -> None:
    """Run a host process; its configuration comes as JSON on standard input, readiness is reported on fd
    1.
    """
    config = HostConfig.decode(sys.stdin.buffer.read())
    open_files.raise_limit()
    zygote = start_zygote(config.sys_path, config.directory) if config.warm else None
    # this and the imports below take half a second, during which the zygote imports, too
    from monarch_nb import _sources
    from monarch_nb._wire.dump import DumpFile

    _sources.guard()
    process = _made(config, zygote)
    DumpFile(dump_path(config.directory, host_proc(config.host)))
    try:
        os.write(1, b"ready\n")
    except OSError:  # the parent process has ended already
        process.loop.call_later(0, process.shut_down)
    log = os.open(config.log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    status = 1
    try:
        process.run()
        while process.successor is not None:
            from monarch_nb._host.agent.agent import HostAgent

            process = HostAgent(process.successor)
            process.run()
        status = 0
    finally:
        # Interpreter shutdown would wait for whatever socket an error has left open.
        os._exit(status)


def _made(config: HostConfig, zygote: Zygote | None) -> HostProcess | Relay:
    """Create the controller, the host agent or the relay, as configured; import no other than that."""
    if config.host >= FIRST_MEMBER:
        from monarch_nb._host.relay import Relay

        return Relay(config)
    if config.host == 0:
        from monarch_nb._host.controller.controller import ControllerProcess

        return ControllerProcess(config, zygote)
    from monarch_nb._host.agent.agent import HostAgent

    return HostAgent(config, zygote)
