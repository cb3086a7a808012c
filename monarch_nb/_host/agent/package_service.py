"""Lists the packages installed where ranks of this host are started. A separate process does it, with the
ranks' interpreter, which may differ from ours, so that the loop isn't blocked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from monarch_nb._protocol.environment import GetPackages, HostPackages, PackageRow
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._wire.process import files_id

if TYPE_CHECKING:
    from monarch_nb._host.agent.process import HostProcess

LOOK_S = 60.0
_CODE = (
    "import sys; sys.path[:] = [p for p in sys.path if p];"
    "import json; sys.path[:] = json.loads(sys.argv[1]);"
    "from monarch_nb._sync.env.installed import main; main()"
)


class PackageService:
    """The service that lists installed packages. Requests are taken by the loop's thread; each is done by a
    thread that waits for its process.
    """

    def __init__(self, process: HostProcess) -> None:
        self._process = process

    @handles(GetPackages)
    def do_get_packages(self, request: GetPackages, sender: Sender) -> HostPackages | Later:
        """Return the packages of the environment in which ranks are started, or only that they are the asking
        program's own.
        """
        environment, path = self._process.supervisor.environment
        prefix = (environment and environment.prefix) or sys.prefix
        if request.files and (request.files, request.prefix) == (files_id(), prefix):
            return HostPackages(True)
        python = sys.executable if environment is None else environment.python
        variables = dict(os.environ) if environment is None else environment.variables(os.environ)
        command = [python, "-c", _CODE, json.dumps(path)]
        threading.Thread(
            target=self._look, args=(command, variables, sender), name="mnb-packages", daemon=True
        ).start()
        return LATER

    def _look(self, command: list[str], variables: dict[str, str], sender: Sender) -> None:
        process = self._process
        try:
            answer: object = HostPackages(False, look(command, variables))
            failed = False
        except Exception as error:  # any error must be answered: the asker waits
            answer, failed = f"host {process.hostname}: {error}", True
        with suppress(RuntimeError):  # the host process ends
            process.loop.call_soon_threadsafe(
                lambda: process.reply(sender.proc, sender.ref, answer, error=failed)
            )


def look(command: list[str], variables: dict[str, str]) -> dict[str, PackageRow]:
    """Return the packages that a command lists.

    Raises:
        RuntimeError: with what it has said last, if it can't.
    """
    try:
        ended = subprocess.run(
            command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOOK_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[0]} has not listed its packages within {LOOK_S:g} s") from None
    if ended.returncode:
        last = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise RuntimeError(f"{command[0]} can't list its packages: {''.join(last) or ended.returncode}")
    return msgspec.json.decode(ended.stdout, type=dict[str, PackageRow])
