"""This machine as a job: one host, which is there already."""

from __future__ import annotations

from collections.abc import Sequence

from monarch_nb.actor.host_mesh import this_host
from monarch_nb.job.base import JobState, JobTrait


class LocalJob(JobTrait):
    """This machine, under one or more names.

    >>> LocalJob().state().hosts.spawn_procs({"gpus": 2})  # doctest: +SKIP
    """

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        super().__init__()
        self.hosts = tuple(hosts)

    def _create(self) -> JobState:
        return JobState({name: this_host() for name in self.hosts})

    def _kill(self) -> None:
        for name in self.hosts:
            getattr(self.state(), name).stop().get(10)
