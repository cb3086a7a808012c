"""Several hosts on one machine: host processes that communicate by tcp with CURVE, as on real machines.

For tests, and to try out what a program does on several hosts before there are any.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from monarch_nb._client import launch
from monarch_nb._client import session as sessions
from monarch_nb._client.session import Session
from monarch_nb._host import capacity
from monarch_nb._host.config import HostConfig
from monarch_nb._host.starting import PROCESS_JOB
from monarch_nb._protocol.ranks import Ticket, Tickets
from monarch_nb._shape import Extent, Shape
from monarch_nb.actor.host_mesh import HostMesh, check_env
from monarch_nb.job.base import JobState, JobTrait, check_meshes


class ProcessJob(JobTrait):
    """A job whose hosts are host processes on this machine.

    Args:
        meshes: number of hosts by mesh name; each mesh has the dimension `hosts`.
        env: environment variables for the hosts, and so for what is spawned on them.

    Example:
        >>> job = ProcessJob({"hosts": 2})                          # doctest: +SKIP
        >>> procs = job.state().hosts.spawn_procs({"gpus": 2})      # doctest: +SKIP
        >>> procs.extent                                            # doctest: +SKIP
        Extent({'hosts': 2, 'gpus': 2})
    """

    def __init__(self, meshes: Mapping[str, int], env: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.meshes = check_meshes(meshes)
        self.env = check_env(env or {})
        self._processes: list[subprocess.Popen[bytes]] = []
        self._hosts: list[int] = []
        self._session: Session | None = None

    def _create(self) -> None:
        capacity.check_room(sum(self.meshes.values()), force=True)
        self._session = sessions.current()
        labels = [f"{name}{i}" for name, num in self.meshes.items() for i in range(num)]
        tickets, self._processes = start_hosts(self._session, labels, self.env)
        self._hosts = [ticket.host for ticket in tickets]

    def _state(self) -> JobState:
        if all(process.poll() is not None for process in self._processes):
            raise RuntimeError(
                "the hosts of this job have already been shut down; kill() it, and state() starts others"
            )
        meshes, at = {}, 0
        for name, num in self.meshes.items():
            meshes[name] = HostMesh(
                self._hosts[at : at + num], Shape.full(Extent(["hosts"], [num])), self._session
            )
            at += num
        return JobState(meshes)

    def _kill(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(10)
        self._processes = []


def hosts_from_config(name: str) -> HostMesh:
    """Return two hosts that are processes of this machine, until a job is configured under that name: they
    end with this program.

    Real hosts come from a job, or from `attach_to_workers`.
    """
    return ProcessJob({"hosts": 2}).state().hosts


def start_hosts(
    session: Session, labels: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[list[Ticket], list[subprocess.Popen[bytes]]]:
    """Start a host process on this machine for each label; return their tickets and processes."""
    tickets = session.request(Tickets(len(labels), list(labels), kind=PROCESS_JOB, env=dict(env or {})))
    root = os.path.dirname(session.transport.directory)
    processes = [launch.start_host_process(agent_config(t, f"{root}/h{t.host}"), env) for t in tickets]
    return tickets, processes


def agent_config(ticket: Ticket, directory: str) -> HostConfig:
    """Return the configuration of a host process that dials the controller with `ticket`."""
    log = os.environ.get("MONARCH_NB_HOST_LOG")
    return HostConfig(ticket.host, directory, launch.importable_path(), log).with_ticket(ticket, directory)
