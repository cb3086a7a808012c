"""Which process is killed at which step, and what is wanted of each. A new fault is one more line."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

STEPS = {
    "start": "start()",
    "cell": "mesh.run('import time; time.sleep(1000)')",
    "call": "mesh.execute(signal.pause).get(60)",
    "heal": "(kill(rank_pid(1)), mesh.heal())",
    "stop": "mesh.stop().get(60)",
    "attach": "monarch_nb.attach(NAME).run('6 * 7')",
}
"""What a program is at when a process is killed."""
VICTIMS = ("host agent", "zygote", "rank", "client", "controller")
SHORT = (
    ("host agent", "cell"),
    ("zygote", "heal"),
    ("rank", "call"),
    ("client", "cell"),
    ("rank", "stop"),
    ("controller", "cell"),
    ("controller", "call"),
    ("controller", "stop"),
    ("controller", "attach"),
)
"""What `make test` runs of it, in an order in which few meshes have to be started."""


@dataclass(frozen=True)
class Kill:
    """A process and a step.

    Attributes:
        fails: whether the step must fail, in words; else it may also succeed, if what was killed isn't needed
            any more.
        words: what its error must say.
        goes_on: what runs doesn't need what was killed, and is ended by an interrupt.
    """

    victim: str
    step: str
    fails: bool = False
    words: tuple[str, ...] = ()
    goes_on: bool = False

    @property
    def name(self) -> str:
        return f"{self.victim} killed at {self.step}"


WANTED = {
    ("controller", "cell"): (True, ("SIGKILL",)),
    ("controller", "call"): (True, ("SIGKILL",)),
    ("host agent", "cell"): (True, ("host",)),
    ("host agent", "call"): (True, ("host",)),
    ("rank", "cell"): (True, ("SIGKILL",)),
    ("rank", "call"): (True, ("SIGKILL",)),
    ("zygote", "cell"): (True, (), True),
    ("zygote", "call"): (True, ("KeyboardInterrupt",), True),
}
KILLS = {(v, s): Kill(v, s, *WANTED.get((v, s), ())) for v, s in itertools.product(VICTIMS, STEPS)}
