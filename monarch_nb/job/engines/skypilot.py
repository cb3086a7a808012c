"""Hosts from SkyPilot, by its command: a cluster of its own for each mesh, on which one job runs the launcher
on every node. The cluster is taken down when that job has ended.

`sky` needs other versions of packages than we do: it's installed in an environment of its own (`uv tool
install skypilot`). Tested with answers in the form of its sources (0.14), never with a cloud.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from monarch_nb._client.ssh import Done
from monarch_nb._wire.invitation import Invitation
from monarch_nb.job.allocation import Allocation, records_directory
from monarch_nb.job.engines import shell
from monarch_nb.job.engines.base import Capabilities, Engine, EngineError, Look, State, Usable
from monarch_nb.job.spec import HostSpec

ASK_S = 60.0
LAUNCH_S = 300.0
"""How long `sky launch --async` may take: it sends files to SkyPilot's server."""
IDLE_MIN = "5"
NUM_WORDS = 20
_RESOURCES = ("infra", "accelerators", "instance_type", "cpus", "memory", "image_id", "disk_size")
_REQUEST = re.compile(r"Submitted sky\.launch request: (\S+)")
_JSON = re.compile(r"^[\[{]", re.MULTILINE)
"""The beginning of an answer; notes may stand before it."""
_WAITS = ("PENDING", "WAITING", "RUNNING")
_JOB_WAITS = ("INIT", "PENDING", "SETTING_UP")
_THERE = "~/.monarch_nb.join"
_QUIET = {"NO_COLOR": "1", "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}


class Request(msgspec.Struct):
    """A request to SkyPilot's server, as `sky api status -o json` shows it."""

    status: str
    status_msg: str | None = None


class Cluster(msgspec.Struct):
    """A cluster, as `sky status -o json` shows it."""

    status: str
    init_status_reason: str | None = None


class Job(msgspec.Struct):
    """A job of a cluster, as `sky queue -o json` shows it."""

    job_id: int
    status: str


class SkyPilot(Engine):
    """The engine of SkyPilot. An allocation's id is the cluster's name, its part the launch's request."""

    name = "skypilot"
    can = Capabilities(queue=True)
    own_keys = ("sky", "spot", "retry", "idle_minutes", *_RESOURCES)

    def usable(self, spec: HostSpec) -> Usable:
        sky = _sky(spec)
        if shutil.which(sky) is None:
            return Usable(
                f"there is no {sky} here: uv tool install skypilot (in an environment of its own); or "
                "sky = PATH in [.skypilot]"
            )
        done = shell.run([sky, "--version"], timeout_s=15.0)
        return Usable() if done.code == 0 else Usable(f"{sky} --version: {done.words}")

    def check(self, spec: HostSpec) -> list[str]:
        minutes = spec.own_value("idle_minutes", IDLE_MIN)
        if not minutes.isdecimal() or int(minutes) < 1:
            return [f"[skypilot] idle_minutes = {minutes!r}: expected a number of minutes, at least 1"]
        for key in ("spot", "retry"):
            if spec.own_value(key, "false") not in ("true", "false"):
                return [f"[skypilot] {key} = {spec.own_value(key)!r}: expected true or false"]
        if spec.gpus and not spec.own_value("accelerators") and not spec.own_value("instance_type"):
            return [f'gpus = {spec.gpus}: of which kind? accelerators = "A100" in [.skypilot]; sky show-gpus']
        if not spec.python:
            return ["skypilot: python = in the profile: the interpreter with monarch_nb on the machines"]
        return []

    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        spec = allocation.spec
        cluster = _cluster_of(allocation)
        asked = replace(allocation, id=cluster, directory=_written(allocation, invitation.to_json(), ".join"))
        task = _written(allocation, json.dumps(_task(asked), indent=1), ".sky.yaml")
        command = [_sky(spec), "launch", "-y", "--async", "-d", "-c", cluster, "--down"]
        command += ["-i", spec.own_value("idle_minutes", IDLE_MIN)]
        command += ["-r"] if spec.own_value("retry") == "true" else []
        done = shell.run([*command, task], timeout_s=LAUNCH_S, env=_QUIET)
        found = _REQUEST.search(done.out)
        if done.code != 0 or found is None:
            raise EngineError(f"sky launch: {done.words}")
        return replace(asked, parts=(found[1],))

    def recalled(self, allocation: Allocation) -> Allocation:
        cluster = _cluster_of(allocation)
        known = self._ask(allocation, ["status", cluster], list[Cluster])
        return replace(allocation, id=cluster) if known else allocation

    def look(self, allocation: Allocation) -> Look:
        if not allocation.parts:
            return Look(State.ENDED, "skypilot's answer to the launch was lost")
        requests = self._ask(allocation, ["api", "status", allocation.parts[0], "-a"], list[Request])
        launch = requests[0] if requests else Request("FAILED", "skypilot knows the request no more")
        if launch.status in ("FAILED", "CANCELLED"):
            return Look(State.ENDED, launch.status_msg or f"sky launch {launch.status.lower()}")
        clusters = self._ask(allocation, ["status", allocation.id], list[Cluster])
        if launch.status in _WAITS:
            why = clusters[0].init_status_reason if clusters else None
            return Look(State.QUEUED, why or launch.status_msg or "SkyPilot looks for machines")
        if not clusters:
            return Look(State.ENDED, "its cluster was taken down")
        jobs = self._ask(allocation, ["queue", allocation.id], dict[str, list[Job]]).get(allocation.id, [])
        status = max(jobs, key=lambda job: job.job_id).status if jobs else "PENDING"
        if status in _JOB_WAITS:
            return Look(State.QUEUED, f"the job on cluster {allocation.id} is {status}")
        if status == "RUNNING":
            return Look(State.GRANTED)
        return Look(State.ENDED, f"the job on cluster {allocation.id} has ended: {status}")

    def end_allocation(self, allocation: Allocation) -> None:
        if allocation.id:
            done = self._sky(allocation, ["down", "-y", allocation.id])
            if done.code != 0 and "not found" not in done.words.lower():
                raise EngineError(
                    f"sky down {allocation.id}: {done.words}. It may go on and cost money: sky status"
                )
        for path in (allocation.directory, f"{allocation.directory.removesuffix('.join')}.sky.yaml"):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def logs(self, allocation: Allocation) -> list[str]:
        done = self._sky(allocation, ["logs", "--no-follow", "--tail", str(NUM_WORDS), allocation.id])
        lines = [line.strip() for line in done.out.splitlines()]
        return [line.partition(") ")[2] or line for line in lines if "node " in line]

    def script(self, allocation: Allocation) -> str:
        return json.dumps(_task(replace(allocation, directory="<the invitation: a secret>")), indent=1)

    def _sky(self, allocation: Allocation, arguments: list[str]) -> Done:
        return shell.run([_sky(allocation.spec), *arguments], timeout_s=ASK_S, env=_QUIET)

    def _ask(self, allocation: Allocation, arguments: list[str], kind: Any) -> Any:
        """Return the answer to a question, which SkyPilot gives as JSON.

        Raises:
            EngineError: if it gives none.
        """
        done = self._sky(allocation, [*arguments, "-o", "json"])
        start = _JSON.search(done.out)
        try:
            return msgspec.json.decode(done.out[start.start() :] if start else "", type=kind)
        except msgspec.MsgspecError:
            raise EngineError(f"sky {arguments[0]}: {done.words}") from None


def _cluster_of(allocation: Allocation) -> str:
    """Return the name of a request's cluster, which is known before SkyPilot is asked."""
    mesh = re.sub(r"[^a-z0-9-]", "-", allocation.mesh.lower())[:24]
    return f"mnb-{mesh}-{allocation.request_name[-6:]}"


def _sky(spec: HostSpec) -> str:
    return os.path.expanduser(spec.own_value("sky", "sky"))


def _task(allocation: Allocation) -> dict[str, Any]:
    """Return the task as SkyPilot reads it."""
    spec = allocation.spec
    resources: dict[str, Any] = {key: spec.own_value(key) for key in _RESOURCES if spec.own_value(key)}
    if spec.gpus and ":" not in resources.get("accelerators", ":"):
        resources["accelerators"] = f"{resources['accelerators']}:{spec.gpus}"
    if spec.own_value("spot") == "true":
        resources["use_spot"] = True
    launcher = shell.host_script(spec, "--place", '"$SKYPILOT_NODE_RANK"')
    return {
        "num_nodes": spec.wanted.most + allocation.plan.num_spares,
        "resources": resources,
        "file_mounts": {_THERE: allocation.directory},
        "run": f"exec 3<{_THERE}; rm -f {_THERE}; exec {launcher} <&3",
    }


def _written(allocation: Allocation, text: str, ending: str) -> str:
    """Write a file that only this user can read, and that lasts until the allocation has ended."""
    path = os.path.join(records_directory(), f"{allocation.mesh}{ending}")
    with suppress(FileNotFoundError):
        os.unlink(path)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path
