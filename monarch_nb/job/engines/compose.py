"""Hosts that run already and wait for meshes in a directory that all of them share: the containers of
`docker/compose.yaml`, or machines on which `monarch-nb host --wait DIR` runs.

The engine needs no docker: who runs notebooks in a container gets no right to start others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from monarch_nb._host import pool
from monarch_nb._wire.invitation import Invitation
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines.base import Capabilities, Engine, EngineError, Look, State, Usable
from monarch_nb.job.spec import HostRange, HostSpec

DIRECTORY = "/run/monarch_nb"
_BACK_S = 5.0
"""How long hosts that were let go may take to wait again: who gives some back may ask for them at once."""


class Compose(Engine):
    """The engine of hosts that wait in a shared directory."""

    name = "compose"
    can = Capabilities(names=True, keys=("gpus",))
    own_keys = ("directory",)

    def usable(self, spec: HostSpec) -> Usable:
        directory = _directory(spec)
        if not os.path.isdir(directory):
            return Usable(
                f"there is no {directory}: `make cluster` starts containers that wait there; elsewhere "
                "run `monarch-nb host --wait DIR` on the hosts, and name DIR: directory = in the profile"
            )
        try:
            pool.check_directory(directory)
        except pool.PoolError as error:
            return Usable(str(error))
        return Usable()

    def check(self, spec: HostSpec) -> list[str]:
        directory = _directory(spec)
        all_there = pool.waiting_hosts(directory)
        missing = [name for name in spec.machines if name not in all_there]
        if missing:
            there_text = ", ".join(all_there) or "none"
            return [f"host {missing[0]} doesn't wait in {directory}; who does: {there_text}"]
        there = _chosen(spec, all_there)
        if spec.wanted.least > len(there):
            return [
                f"{spec.wanted.least} hosts were asked for, and {len(there)} wait in {directory}: "
                f"{', '.join(there) or 'none'}. More: docker compose up --scale host="
                f"{spec.wanted.least}; or let others go: %mesh queue"
            ]
        return []

    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        spec, directory = allocation.spec, _directory(allocation.spec)
        most = spec.wanted.most + allocation.plan.num_spares
        taken: list[str] = []
        for host in _chosen(spec, pool.waiting_hosts(directory)):
            if len(taken) < most and pool.claim_host(directory, host):
                taken.append(host)
        if len(taken) < spec.wanted.least:
            for host in taken:
                pool.release(directory, host)
            raise EngineError(
                f"{spec.wanted.least} hosts were asked for, and {len(taken)} wait in {directory}"
            )
        for host in taken:
            pool.invite(directory, host, invitation.to_json())
        return replace(allocation, parts=tuple(taken), directory=directory)

    def further(self, asked: Sequence[Allocation], num: int) -> HostSpec:
        return replace(asked[0].spec, machines=(), hosts=HostRange(num, num))

    def release(self, allocation: Allocation, nodes: Sequence[str]) -> Allocation:
        pool.wait_until_back(allocation.directory, nodes, _BACK_S)
        return replace(allocation, parts=tuple(p for p in allocation.parts if p not in nodes))

    def look(self, allocation: Allocation) -> Look:
        """Return the hosts that are still present. This engine grants hosts at once or not at all; a host
        that has ended doesn't belong to a mesh any more.
        """
        there = tuple(h for h in allocation.parts if pool.is_here(allocation.directory, h))
        return Look(State.GRANTED, nodes=there) if there else Look(State.ENDED, "its hosts have ended")

    def end_allocation(self, allocation: Allocation) -> None:
        """Release hosts that haven't joined, so that they wait for a mesh again. Hosts that have joined do so
        when their mesh ends.
        """
        for host in allocation.parts:
            pool.release(allocation.directory, host)
            pool.forget_refusal(allocation.directory, host)
        pool.wait_until_back(allocation.directory, allocation.parts, _BACK_S)

    def logs(self, allocation: Allocation) -> list[str]:
        refusals = [(host, pool.refusal_of(allocation.directory, host)) for host in allocation.parts]
        return [f"node {host}: {words}" for host, words in refusals if words]

    def script(self, allocation: Allocation) -> str:
        spec = allocation.spec
        there = _chosen(spec, pool.waiting_hosts(_directory(spec)))
        return "\n".join(["an invitation is given to:", *there[: spec.wanted.most]])


def _directory(spec: HostSpec) -> str:
    return os.path.abspath(os.path.expanduser(spec.own_value("directory", DIRECTORY)))


def _chosen(spec: HostSpec, there: list[str]) -> list[str]:
    """Return the hosts that may be used: the named ones, or all."""
    return [host for host in there if not spec.machines or host in spec.machines]
