"""The address of a mesh, which travels with its handles, so that they stay valid in processes of other
meshes.

It's the place of the controller's sockets, and nothing secret: who may enter that directory on that machine
may use the mesh, as any program of its user may.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from monarch_nb._wire import address
from monarch_nb._wire.process import is_running, machine_id, start_time

APART = "MONARCH_NB_RDMA_MACHINE"
"""Processes with different values of this variable treat each other as processes of other machines: for tests
on one machine.
"""


def this_machine() -> str:
    """Return the id of this machine, for those that may use its meshes."""
    return f"{machine_id()} {os.environ.get(APART, '')}"


class MeshAddress(NamedTuple):
    """The address of a mesh: the place of its controller.

    Attributes:
        mesh_id: drawn by the controller; no other mesh has it.
        name: name of the mesh; empty if it belongs to a single program.
        machine: machine on which `pid` is valid; see `machine_id`.
        hostname: hostname of that machine.
        directory: of the controller's sockets.
        pid, start_time: the controller process.
    """

    mesh_id: str
    name: str
    machine: str
    hostname: str
    directory: str
    pid: int
    start_time: int | None = None

    @classmethod
    def of_controller(cls, mesh_id: str, name: str, directory: str, pid: int) -> MeshAddress:
        """Return the address of a controller of this machine."""
        return cls(mesh_id, name, this_machine(), socket.gethostname(), directory, pid, start_time(pid))

    @property
    def is_near(self) -> bool:
        """Whether the controller is on this machine, in sight of this process."""
        return self.machine == this_machine()

    @property
    def lives(self) -> bool:
        """Whether the controller still runs, on this machine."""
        return is_running(self.pid, self.start_time)

    @property
    def is_open(self) -> bool:
        """Whether this process may use the sockets of a controller of this machine."""
        return os.access(address.socket_path(self.directory, address.CONTROLLER), os.R_OK | os.W_OK)

    def __str__(self) -> str:
        return (
            f"mesh {self.name!r}"
            if self.name
            else f"the mesh whose controller is process {self.pid} on {self.hostname}"
        )
