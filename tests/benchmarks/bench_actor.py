"""What benchmarks share: the actor that is measured, in a module that ranks import by name, and quiet."""

from __future__ import annotations

import time
from typing import Any

from monarch_nb._client import session
from monarch_nb._protocol.programs import Status
from monarch_nb.actor import Actor, endpoint

POLL_S = 0.05


def wait_until_warm() -> None:
    """Wait until the mesh's zygote has done what it does in idle time. It takes a core for some seconds, and
    what is measured meanwhile on two cores takes twice as long, floor or ours.
    """
    while not session.current().request(Status()).warm:
        time.sleep(POLL_S)


class Bench(Actor):
    @endpoint
    def noop(self) -> None:
        """Nothing."""

    @endpoint
    def take(self, value: Any) -> None:
        """Nothing with it."""

    @endpoint
    def last(self, tensor: Any) -> int:
        return int(tensor[-1])

    @endpoint
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
