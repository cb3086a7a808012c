"""This machine as a job: one host, which exists already."""

from __future__ import annotations

from collections.abc import Sequence

from monarch_nb.actor.host_mesh import HostMesh, is_shut_down, this_host
from monarch_nb.job.base import JobState, JobTrait


class LocalJob(JobTrait):
    """A job whose host is this machine, under one or more names.

    >>> LocalJob().state().hosts.spawn_procs({"gpus": 2})  # doctest: +SKIP
    """

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        super().__init__()
        self.hosts = tuple(hosts)

        self._given: list[HostMesh] = []

    def _create(self) -> None:
        """Do nothing: the host is there already."""

    def _state(self) -> JobState:
        meshes = {name: this_host() for name in self.hosts}
        self._given += meshes.values()
        return JobState(meshes)

    def _kill(self) -> None:
        given, self._given = self._given, []
        for mesh in given:
            if not is_shut_down(mesh):
                mesh.stop().get(10)
