"""Hosts from Ray: a placement group that spreads over nodes, and on each node an actor that runs the
launcher.

A mesh with its controller inside is started by a program that an actor on any node runs: that program asks
Ray for the hosts, as this one would.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import socket as sockets
import sys
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from monarch_nb._wire.invitation import Invitation
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines import ray_program, shell
from monarch_nb.job.engines.base import Capabilities, Engine, EngineError, Inside, Look, State, Usable
from monarch_nb.job.spec import INSIDE, HostSpec

IN_RAY = "MONARCH_NB_IN_RAY"
"""Variable of the program that starts a mesh inside: JSON of `address`, of Ray; `driver`, an interpreter that
has ray; `hosts`, the name for the actor that has them; `invitation`, the path of a file.
"""
_given: dict[str, str] = {}
"""What that variable said, in the program with a mesh's controller."""
_OF_RAY = re.compile(rb"\0--gcs[-_]address=")
"""An argument of the daemon of each node, by which Ray finds the cluster that this machine is of."""
_PLACED = "CREATED"
"""Ray's state of a placement group that has its nodes."""


@dataclass(frozen=True)
class Kept:
    """The answer of `MeshHosts` about its hosts; see `ray_driver`."""

    state: str
    reason: str
    nodes: tuple[str, ...]
    words: tuple[str, ...]
    is_over: bool


class Ray(Engine):
    """The engine of Ray."""

    name = "ray"
    can = Capabilities(queue=True, inside=True)
    own_keys = ("address", "driver", "cpus")

    def __init__(self) -> None:
        self._words: tuple[str, ...] = ()

    def usable(self, spec: HostSpec) -> Usable:
        python = _driver(spec)
        if shutil.which(python) is None:
            return Usable(f"there is no {python}: driver = an interpreter that has ray, in [.ray]")
        if not shell.has_module(python, "ray"):
            return Usable(
                f"{python} has no ray: pip install 'ray' there, in the cluster's version; or name another "
                "interpreter: driver = in [.ray]"
            )
        address = spec.own_value("address", "auto")
        return Usable(_unreachable(address) or _not_here(address))

    def check(self, spec: HostSpec) -> list[str]:
        if not _is_number(spec.own_value("cpus", "1")):
            return [f"[ray] cpus = {spec.own_value('cpus')!r}: expected a number of cores for each host"]
        num, there = self._fitting(spec)
        if spec.wanted.least > num:
            gpus = f" with {spec.gpus} GPUs" if spec.gpus else ""
            return [
                f"{spec.wanted.least} hosts were asked for, and {num} of Ray's {there} nodes{gpus} would do"
            ]
        return []

    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        spec, name = allocation.spec, _name_for(allocation)
        num = min(spec.wanted.most + allocation.plan.num_spares, self._fitting(spec)[0])
        self._ask(
            spec,
            do="submit",
            name=name,
            num=max(num, spec.wanted.least),
            bundle=_bundle(spec),
            script=shell.host_script(spec),
            invitation=invitation.to_json(),
        )
        return replace(allocation, id=name)

    def submit_inside(self, allocation: Allocation) -> Allocation:
        spec, name = allocation.spec, _name_for(allocation)
        program = shell.profile_script(spec, shell.inside_command(spec))
        self._ask(spec, do="submit_inside", name=name, script=program, request=allocation.to_json())
        return replace(allocation, id=name)

    def recalled(self, allocation: Allocation) -> Allocation:
        named = replace(allocation, id=_name_for(allocation))
        return named if self._ask(named.spec, do="look", name=named.id).strip() != "null" else allocation

    def invitation(self, allocation: Allocation) -> str:
        return str(msgspec.json.decode(self._ask(allocation.spec, do="invitation", name=allocation.id)))

    def look(self, allocation: Allocation) -> Look:
        if not allocation.id:
            return Look(State.ENDED, "ray was never asked")
        answer = self._ask(allocation.spec, do="look", name=allocation.id)
        kept: Kept | None = msgspec.json.decode(answer, type=Kept | None)
        if kept is None:
            return Look(State.ENDED, "ray has no such actor any more")
        self._words = kept.words
        if kept.is_over:
            what = "the program with the controller has" if _is_inside(allocation) else "all launchers have"
            return Look(State.ENDED, f"{what} ended")
        if kept.state == _PLACED:
            return Look(State.GRANTED, nodes=kept.nodes)
        return Look(State.QUEUED, kept.reason or kept.state)

    def end_allocation(self, allocation: Allocation) -> None:
        if allocation.id:
            self._ask(allocation.spec, do="end", name=allocation.id)

    def logs(self, allocation: Allocation) -> list[str]:
        return [f"node {words}" for words in self._words]

    def script(self, allocation: Allocation) -> str:
        spec = allocation.spec
        hosts = f"on {spec.wanted} nodes, in bundles of {_bundle(spec)}:\n{shell.host_script(spec)}"
        if not _is_inside(allocation):
            return hosts
        return f"on any node:\n{shell.profile_script(spec, shell.inside_command(spec))}\n{hosts}"

    def _fitting(self, spec: HostSpec) -> tuple[int, int]:
        """Return the number of nodes with enough resources for a host, and the number of all nodes."""
        nodes = msgspec.json.decode(self._ask(spec, do="nodes"), type=list[dict[str, float]])
        bundle = _bundle(spec)
        return sum(all(node.get(k, 0) >= v for k, v in bundle.items()) for node in nodes), len(nodes)

    def _ask(self, spec: HostSpec, **request: object) -> str:
        """Ask the driver; return its answer as JSON.

        Raises:
            EngineError: if Ray can't be reached, with Ray's message.
        """
        address = spec.own_value("address", "auto")
        if why := _unreachable(address):
            raise EngineError(why)
        is_repeatable = request["do"] not in ("submit", "submit_inside")
        return ray_program.ask(_driver(spec), {"address": address, **request}, is_repeatable=is_repeatable)


def inside(asked: Allocation) -> Inside:
    """Return what a mesh takes whose controller `ray_driver.MeshInside` runs: hosts of the same Ray."""
    _given.update(msgspec.json.decode(os.environ.pop(IN_RAY), type=dict[str, str]))  # no rank inherits it
    own = {**dict(asked.spec.own), "address": _given["address"], "driver": _given["driver"]}
    spec = replace(asked.spec, controller="", login="", own=tuple(own.items()))
    return Inside(spec, _given["invitation"], with_program=True)


def _is_inside(allocation: Allocation) -> bool:
    return allocation.spec.controller == INSIDE


def _name_for(allocation: Allocation) -> str:
    """Return the name of the actor that has a request; it's known before Ray is asked. What the program with
    a controller inside asks for is found by the name of its own request.
    """
    if _given:
        return _given["hosts"]
    return allocation.request_name


def _driver(spec: HostSpec) -> str:
    return os.path.expanduser(spec.own_value("driver", sys.executable))


def _unreachable(address: str) -> str:
    """Return why nothing listens at HOST:PORT or ray://HOST:PORT, which Ray itself would retry for minutes;
    empty if something does, or if the address is of another kind.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in address or not port.isdigit():
        return ""
    try:
        sockets.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except (OSError, OverflowError) as error:
        return f"no Ray answers at {address} ({error}): address = in [.ray]; `ray status` says where it is"
    return ""


def _not_here(address: str) -> str:
    """Return why this machine has no Ray that would be used without an address; empty if it has one, which
    Ray itself finds by the arguments of its daemon, too.
    """
    if address != "auto" or os.environ.get("RAY_ADDRESS"):
        return ""
    for path in glob.iglob("/proc/[0-9]*/cmdline"):
        with suppress(OSError), open(path, "rb") as arguments:
            if _OF_RAY.search(arguments.read()):
                return ""
    return (
        "no Ray runs on this machine: address = HOST:PORT in [.ray] names a cluster; ray start --head makes "
        "one here"
    )


def _bundle(spec: HostSpec) -> dict[str, float]:
    """Return the resources that each host requests."""
    found = {"CPU": float(spec.own_value("cpus", "1"))}
    return found | {"GPU": float(spec.gpus)} if spec.gpus else found


def _is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
