"""The actor that is measured; a module of its own, so that ranks import it by name."""

from __future__ import annotations

import time
from typing import Any

from monarch_nb.actor import Actor, endpoint


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
