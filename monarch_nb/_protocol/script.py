"""A run of a script, as requested from ranks: the script, its settings, and the rendezvous of its
processes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import msgspec


class Rendezvous(msgspec.Struct, frozen=True):
    """The address at which the processes of one run meet.

    Attributes:
        is_store: whether a TCPStore listens there already, as torchrun's agent has one; else the script's
            rank 0 is to start it.
    """

    address: str
    port: int
    is_store: bool = False


class Script(msgspec.Struct, frozen=True):
    """A script or a module, with the arguments and settings that torchrun would give it.

    Attributes:
        target: file as it was typed, or a module's name.
        args: arguments of the script.
        is_module: whether it is run as `python -m` does.
        env: variables for this run only.
        workdir: working directory; where it doesn't exist, the rank's own.
        procs: the processes that run it, in the order of their ranks.
        rendezvous: made for this run.
    """

    target: str
    args: tuple[str, ...] = ()
    is_module: bool = False
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    workdir: str = ""
    procs: tuple[int, ...] = ()
    rendezvous: Rendezvous | None = None

    @property
    def line(self) -> str:
        """The command line that runs the script.

        >>> Script("train.py", ("--lr", "0.1"), env={"SEED": "1"}).line
        '%mesh run --env SEED=1 train.py --lr 0.1'
        """
        words = [word for key, value in self.env.items() for word in ("--env", f"{key}={value}")]
        return (
            f"%mesh run {shlex.join([*words, *(['-m'] if self.is_module else []), self.target, *self.args])}"
        )
