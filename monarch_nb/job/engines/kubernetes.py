"""Hosts from Kubernetes: a job whose pods run the launcher, and a secret with the invitation.

A controller inside is a pod of its own that may ask the cluster for nothing: its user requests hosts for it,
and reaches it through the API server, from where no pod can be dialled, and which no pod can dial.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from monarch_nb._client.tunnel import Tunnel
from monarch_nb._wire.invitation import Invitation
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines import kubernetes_manifest as manifest
from monarch_nb.job.engines.base import Capabilities, Engine, EngineError, Inside, Look, State, Usable
from monarch_nb.job.engines.kubernetes_answers import CONFLICT, Event, Job, Node, Pod, Refused
from monarch_nb.job.spec import INSIDE, HostSpec

if TYPE_CHECKING:
    from monarch_nb.job.engines.kubernetes_api import Api

_NEEDED = (
    ("create", "batch", "jobs"),
    ("delete", "batch", "jobs"),
    ("create", "", "secrets"),
    ("list", "", "pods"),
)
_NEEDED_INSIDE = (("get", "", "pods/exec"), ("get", "", "pods/portforward"))
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kKMGTPE]i?)?")
_STUCK_IMAGE = "image = in [.kubernetes] can't be pulled; for a private registry: pull_secret ="
_STUCK = {
    "ErrImagePull": _STUCK_IMAGE,
    "ImagePullBackOff": _STUCK_IMAGE,
    "InvalidImageName": _STUCK_IMAGE,
    "ErrImageNeverPull": _STUCK_IMAGE,
    "CreateContainerConfigError": "the node can't create the container with the profile's settings",
    "CreateContainerError": "the node can't create the container with the profile's settings",
    "RunContainerError": "the image needs a shell, /bin/sh",
}
"""Reasons why a container can never run, with the remedy."""


class Kubernetes(Engine):
    """The engine of Kubernetes."""

    name = "kubernetes"
    can = Capabilities(queue=True, inside=True, keys=("gpus", "time", "python", "setup"))
    own_keys = (
        "image",
        "namespace",
        "context",
        "kubeconfig",
        "cpu",
        "memory",
        "shm",
        "node_selector",
        "tolerate",
        "queue",
        "priority",
        "pull_secret",
        "service_account",
        "gpu_resource",
        "same_node",
        "autoscale",
    )

    def __init__(self) -> None:
        self._words: list[str] = []
        self._apis: dict[tuple[tuple[str, str], ...], Api] = {}

    def usable(self, spec: HostSpec) -> Usable:
        if importlib.util.find_spec("kubernetes") is None:
            return Usable(
                "the client of Kubernetes isn't installed here: pip install 'monarch_nb[kubernetes]'"
            )
        try:
            api = self._api(spec)
            api.may("list", "", "pods")
        except EngineError as error:
            return Usable(str(error))
        return Usable()

    def check(self, spec: HostSpec) -> list[str]:
        wrong = _wrong_values(spec)
        if wrong:
            return wrong
        api = self._api(spec)
        needed = (*_NEEDED, *_NEEDED_INSIDE) if spec.controller == INSIDE else _NEEDED
        missing = [
            f"{verb} {resource}" for verb, group, resource in needed if not api.may(verb, group, resource)
        ]
        if missing:
            return [
                f"you may not {' and '.join(missing)} in namespace {api.namespace}: ask for the role, or "
                "name another: namespace = in [.kubernetes]"
            ]
        return _too_few(spec, self._nodes(api))

    def submit(self, allocation: Allocation, invitation: Invitation) -> Allocation:
        api = self._api(allocation.spec)
        made = self._made(api, manifest.job(allocation))
        self._make_secret(api, manifest.secret(allocation, invitation, made.metadata.uid))
        return replace(allocation, id=made.metadata.name, directory=api.namespace)

    def submit_inside(self, allocation: Allocation) -> Allocation:
        api = self._api(allocation.spec)
        made = self._made(api, manifest.controller_job(allocation))
        self._make_secret(api, manifest.controller_secret(allocation, made.metadata.uid))
        return replace(allocation, controller_id=made.metadata.name)

    def _made(self, api: Api, wanted: manifest.Manifest) -> Job:
        """Create a job; return the existing one if it was created before."""

        try:
            return api.call(Job, api.batch.create_namespaced_job, api.namespace, wanted)
        except Refused as refused:
            if refused.status != CONFLICT:
                raise
            return api.call(Job, api.batch.read_namespaced_job, wanted["metadata"]["name"], api.namespace)

    def _make_secret(self, api: Api, wanted: manifest.Manifest) -> None:
        """Create a secret, unless it was created before."""

        try:
            api.call(dict[str, object], api.core.create_namespaced_secret, api.namespace, wanted)
        except Refused as refused:
            if refused.status != CONFLICT:
                raise

    def recalled(self, allocation: Allocation) -> Allocation:
        is_inside = allocation.spec.controller == INSIDE
        name = manifest.controller_name_of(allocation) if is_inside else manifest.name_of(allocation)
        api = self._api(allocation.spec)
        if api.found(Job, api.batch.read_namespaced_job, name, api.namespace) is None:
            return allocation
        if is_inside:
            return replace(allocation, controller_id=name)
        return replace(allocation, id=name, directory=api.namespace)

    def invitation(self, allocation: Allocation) -> str:
        from monarch_nb.job.engines import kubernetes_streams

        api = self._api(allocation.spec)
        pod = api.running_pod(allocation.controller_id)
        if not pod:
            return ""
        done = kubernetes_streams.output_of(api, pod, ["cat", manifest.OWN_INVITATION])
        return done.out if done.code == 0 else ""

    def tunnel(self, allocation: Allocation) -> Tunnel | None:
        from monarch_nb.job.engines import kubernetes_forward

        spec, job = allocation.spec, allocation.controller_id
        api = self._api(spec)
        if api.is_within:
            return None
        lead = partial(kubernetes_forward.command, spec, job)
        return Tunnel(api.server, lead, lambda done: done.words)

    def look(self, allocation: Allocation) -> Look:
        """Return the state of the hosts; of the controller, if it runs alone and no hosts were requested."""
        is_alone = allocation.controller_id and not allocation.id
        if not is_alone:
            return self._look(allocation, manifest.name_of(allocation), allocation.spec.wanted.least)
        return self._look(allocation, allocation.controller_id, 1)

    def _look(self, allocation: Allocation, name: str, least: int) -> Look:
        api = self._api(allocation.spec)
        job = api.found(Job, api.batch.read_namespaced_job, name, api.namespace)
        if job is None:
            return Look(State.ENDED, "Kubernetes has no such job any more")
        pods = api.pods_of(name)
        self._words = [words for pod in pods for words in _last_words(pod)]
        ended = next(
            (c for c in job.status.conditions if c.type in ("Complete", "Failed") and c.status == "True"),
            None,
        )
        if ended is not None:
            return Look(State.ENDED, ended.message or "all launchers have ended")
        if job.metadata.deletion_timestamp:
            return Look(State.LEAVING, "its job is being deleted")
        placed = [pod for pod in pods if pod.spec.node_name]
        if len(placed) >= least and self._is_decided(api, job, pods):
            return self._granted(placed)
        return self._queued(api, job, pods)

    def _is_decided(self, api: Api, job: Job, pods: list[Pod]) -> bool:
        """Return whether each of a job's pods has a node, or is known to get none for now: pods are created
        and placed one after the other.
        """
        decided = sum(bool(pod.spec.node_name or _unplaced(pod)) for pod in pods)
        if decided >= job.spec.parallelism:
            return True
        return decided == len(pods) and bool(self._refusals(api, job))

    def _granted(self, placed: list[Pod]) -> Look:
        nodes = tuple(str(pod.spec.node_name) for pod in placed)
        ends = min((at for at in map(_ends_at, placed) if at is not None), default=None)
        waiting = [
            (reason, message) for pod in placed for reason, message in _waiting(pod) if reason in _STUCK
        ]
        if not waiting:
            return Look(State.GRANTED, ends_at=ends, nodes=nodes)
        reason, message = waiting[0]
        return Look(State.QUEUED, f"{reason}: {message}" if message else reason, _STUCK[reason], nodes=nodes)

    def _queued(self, api: Api, job: Job, pods: list[Pod]) -> Look:
        """Return the state of pods without nodes, with the reason that the scheduler gives, or the controller
        that isn't allowed to create them.
        """
        messages = [message for pod in pods for message in _unplaced(pod)]
        if messages:
            return Look(State.QUEUED, messages[0].strip())
        refused = self._refusals(api, job) if len(pods) < job.spec.parallelism else []
        if refused:
            return Look(State.QUEUED, refused[-1], "Kubernetes creates no pods for it, for this reason")
        return Look(State.QUEUED, "its pods are about to be placed")

    def end_allocation(self, allocation: Allocation) -> None:
        self._delete(allocation, manifest.name_of(allocation))

    def end_controller(self, allocation: Allocation) -> None:
        if allocation.spec.controller == INSIDE:
            self._delete(allocation, manifest.controller_name_of(allocation))

    def _delete(self, allocation: Allocation, name: str) -> None:
        api = self._api(allocation.spec)
        delete = api.batch.delete_namespaced_job
        api.found(dict[str, object], delete, name, api.namespace, propagation_policy="Background")
        api.found(dict[str, object], api.core.delete_namespaced_secret, name, api.namespace)

    def extend(self, allocation: Allocation, seconds: float) -> None:
        raise EngineError(
            f"{allocation.described()}: Kubernetes can't extend the time of a running pod. Start "
            "another mesh with a longer --time, or with none"
        )

    def logs(self, allocation: Allocation) -> list[str]:
        return list(self._words)

    def script(self, allocation: Allocation) -> str:
        found = manifest.job(allocation)
        said = json.dumps(found, indent=1) + f"\nand a secret {found['metadata']['name']} with the invitation"
        if allocation.spec.controller != INSIDE:
            return said
        first = manifest.controller_job(allocation)
        return f"{json.dumps(first, indent=1)}\nwith the controller, and when it runs:\n{said}"

    # --- queries

    def _api(self, spec: HostSpec) -> Api:
        from monarch_nb.job.engines.kubernetes_api import Api

        if spec.own not in self._apis:
            self._apis[spec.own] = Api(spec)
        return self._apis[spec.own]

    def _refusals(self, api: Api, job: Job) -> list[str]:
        """Return why the job's controller couldn't create pods; empty if the user may not read that."""

        chosen = f"involvedObject.uid={job.metadata.uid},reason=FailedCreate"
        with suppress(Refused):
            events = api.listed(Event, api.core.list_namespaced_event, api.namespace, field_selector=chosen)
            return [event.message.strip() for event in events if event.message]
        return []

    def _nodes(self, api: Api) -> list[Node]:
        """Return the cluster's nodes; none if the user may not list them."""

        with suppress(Refused):
            return api.listed(Node, api.core.list_node)
        return []


def inside(asked: Allocation) -> Inside:
    """Return what the program of a controller's pod does: it starts a mesh without hosts."""
    # Through the API server it's reached at its loopback address.
    spec = replace(asked.spec, controller="", network="")
    path = os.environ.pop(manifest.OWN_INVITATION_VARIABLE)
    return Inside(spec, path, with_program=True, asks=False)


# --- parsing


def _wrong_values(spec: HostSpec) -> list[str]:
    if not spec.own_value("image"):
        return ['Kubernetes needs an image that has monarch_nb: image = "team/image:1" in [.kubernetes]']
    for key in ("cpu", "memory", "shm"):
        if spec.own_value(key) and not _QUANTITY.fullmatch(spec.own_value(key)):
            return [
                f"[kubernetes] {key} = {spec.own_value(key)!r}: expected a quantity as in 8, 500m or 64Gi"
            ]
    for key in ("same_node", "autoscale"):
        if spec.own_value(key, "false") not in ("true", "false"):
            return [f"[kubernetes] {key} = {spec.own_value(key)!r}: expected true or false"]
    if not all(manifest.node_labels(spec).values()):
        return [f"[kubernetes] node_selector = {spec.own_value('node_selector')!r}: expected 'pool=a,zone=b'"]
    return []


def _too_few(spec: HostSpec, nodes: list[Node]) -> list[str]:
    """Return the error if the cluster has too few matching nodes even when all are free, so that waiting is
    useless.
    """
    if not nodes or spec.own_value("autoscale") == "true" or spec.own_value("same_node") == "true":
        return []
    fitting = [node for node in nodes if _fits(spec, node)]
    if spec.wanted.least <= len(fitting):
        return []
    gpus = f" with {spec.gpus} GPUs" if spec.gpus else ""
    selected = f" and {spec.own_value('node_selector')}" if spec.own_value("node_selector") else ""
    return [
        f"{spec.wanted.least} hosts were asked for, and {len(fitting)} of the cluster's {len(nodes)} nodes"
        f"{gpus}{selected} would do. If nodes come when they're needed: autoscale = true in [.kubernetes]"
    ]


def _fits(spec: HostSpec, node: Node) -> bool:
    has = node.status.allocatable.get(spec.own_value("gpu_resource", manifest.GPU), "0")
    wanted = manifest.node_labels(spec).items()
    return (
        not node.spec.unschedulable
        and int(has if has.isdigit() else 0) >= (spec.gpus or 0)
        and wanted <= node.metadata.labels.items()
    )


def _unplaced(pod: Pod) -> list[str]:
    """Return why the scheduler hasn't placed a pod; empty if it has, or hasn't tried yet."""
    found = [c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"]
    return [c.message or c.reason or "" for c in found]


def _waiting(pod: Pod) -> list[tuple[str, str]]:
    found = [each.state.waiting for each in pod.status.container_statuses]
    return [(w.reason, w.message or "") for w in found if w is not None and w.reason]


def _last_words(pod: Pod) -> list[str]:
    """Return the last output of a pod's launcher if it failed, and the reason why Kubernetes ended the
    pod.
    """
    name = pod.spec.node_name or pod.metadata.name
    if pod.status.phase == "Failed" and pod.status.reason:
        return [f"node {name}: {pod.status.reason}: {pod.status.message or ''}".rstrip(": ")]
    found = [each.state.terminated for each in pod.status.container_statuses]
    messages = [(t.message or (t.reason or "") * (t.exit_code != 0)).strip() for t in found if t is not None]
    return [f"node {name}: {_tail(words)}" for words in messages if words]


def _tail(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return re.sub(r"^node \S+: ", "", "; ".join(lines[-3:]))


def _ends_at(pod: Pod) -> float | None:
    if not pod.status.start_time or pod.spec.active_deadline_seconds is None:
        return None
    return datetime.fromisoformat(pod.status.start_time).timestamp() + pod.spec.active_deadline_seconds
