"""Several hosts on one machine: host processes that talk tcp with CURVE, as on real machines.

For tests, and to try out what a program does on several hosts before there are any.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from monarch_nb._client import launch
from monarch_nb._client import session as sessions
from monarch_nb._client.session import Session
from monarch_nb._host import capacity
from monarch_nb._host.starting import PROCESS_JOB
from monarch_nb._shape import Extent, Shape
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.job.base import JobState, JobTrait, check_meshes


class ProcessJob(JobTrait):
    """Host processes on this machine.

    Args:
        meshes: number of hosts by mesh name.

    Example:
        >>> job = ProcessJob({"hosts": 2})                          # doctest: +SKIP
        >>> procs = job.state().hosts.spawn_procs({"gpus": 2})      # doctest: +SKIP
        >>> procs.extent                                            # doctest: +SKIP
        Extent({'hosts': 2, 'gpus': 2})
    """

    def __init__(self, meshes: Mapping[str, int]) -> None:
        super().__init__()
        self.meshes = check_meshes(meshes)
        self._processes: list[subprocess.Popen[bytes]] = []

    def _create(self) -> JobState:
        capacity.check_room(sum(self.meshes.values()), force=True)
        session = sessions.current()
        labels = [f"{name}{i}" for name, num in self.meshes.items() for i in range(num)]
        tickets, self._processes = start_hosts(session, labels)
        meshes, at = {}, 0
        for name, num in self.meshes.items():
            hosts = [t["host"] for t in tickets[at : at + num]]
            meshes[name] = HostMesh(hosts, Shape.full(Extent([name], [num])), session)
            at += num
        return JobState(meshes)

    def _kill(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(10)
        self._processes = []


def start_hosts(
    session: Session, labels: Sequence[str]
) -> tuple[list[dict[str, Any]], list[subprocess.Popen[bytes]]]:
    """Start a host process on this machine for each label; return their tickets and processes."""
    tickets = session.request("tickets", num=len(labels), labels=list(labels), kind=PROCESS_JOB)
    root = os.path.dirname(session.office.directory)
    processes = [launch.start_host_process(far_config(t, f"{root}/h{t['host']}")) for t in tickets]
    return tickets, processes


def far_config(ticket: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Return the configuration of a host process that dials home with `ticket`."""
    return {
        **ticket,
        "directory": directory,
        "sys_path": launch.importable_path(),
        "log": os.environ.get("MONARCH_NB_HOST_LOG"),
    }
