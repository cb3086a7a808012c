"""Defines the configuration of a host process. Imports little: it's read before anything else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from monarch_nb._protocol.ranks import Ticket


class HostConfig(NamedTuple):
    """The configuration of a host process, which it reads from its standard input.

    Attributes:
        host: its number; 0: the controller.
        directory: where its sockets lie.
        sys_path: the module path of its ranks.
        log: the file for what it writes itself; None: nowhere.
        label: what people call this host; empty: its hostname.
        generation: how many processes have had this host's place before.
        controller: the address to dial.
        controller_key: the controller's public key; `public`, `secret`: the pair of this host.
        launcher_pid: the process that an engine has started here, with which this one ends.
        job: what has given this host, as in "slurm job 7".
        owner_pid: the program with which the controller ends.
        warm_claim: the claim by which a program keeps this controller warm.
        requirements: what a program must have in common with it to take it: a `Requirements` as JSON.
        warm: whether it starts a zygote at once.
        name: of the mesh that a relay belongs to; `connection_file`: where it says how it's reached.
        road: the command that leads a relay's `controller` (ipc://PATH) to another machine. Empty: it dials
            by itself.
        via: what people call the machine by which a relay reaches a mesh of its own user's; empty: the mesh
            is another user's.
    """

    host: int
    directory: str
    sys_path: list[str]
    log: str | None = None
    label: str = ""
    generation: int = 0
    controller: str = ""
    controller_key: str = ""
    public: str = ""
    secret: str = ""
    launcher_pid: int | None = None
    job: str = ""
    owner_pid: int | None = None
    warm_claim: str = ""
    requirements: str = ""
    warm: bool = True
    name: str = ""
    connection_file: str = ""
    road: tuple[str, ...] = ()
    via: str = ""

    @property
    def is_own(self) -> bool:
        """Whether a relay's programs are those of the mesh's owner: they may be away for minutes."""
        return bool(self.via)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the configuration that `encode` has written."""
        return cls(**json.loads(data))

    def encode(self) -> bytes:
        """Return the configuration as JSON."""
        return json.dumps(self._asdict()).encode()

    def redirected(self, port: int, controller_key: str) -> Self:
        """Return the configuration of a host whose controller has another port and another key."""
        where = self.controller.rpartition(":")[0]
        return self._replace(controller=f"{where}:{port}", controller_key=controller_key)

    def with_ticket(self, ticket: Ticket, directory: str) -> Self:
        """Return the configuration of a host process that takes the place of `ticket`."""
        return self._replace(
            host=ticket.host,
            generation=ticket.generation,
            label=ticket.label,
            controller=ticket.controller,
            controller_key=ticket.controller_key,
            public=ticket.public,
            secret=ticket.secret,
            directory=directory,
        )
