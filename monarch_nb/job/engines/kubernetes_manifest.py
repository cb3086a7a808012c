"""The Kubernetes objects of a request for hosts: a job whose pods are the hosts, and a secret that admits
them; a job and a secret besides for a controller that runs in a pod.

A job and no StatefulSet: its pods end when their mesh does, and give their GPUs back without anybody's doing;
a StatefulSet would start them again for ever. A job needs no names of hosts either, because hosts dial the
controller and say what their address is; and queues of clusters (Kueue) know jobs.
"""

from __future__ import annotations

import getpass
import hashlib
import re
import shlex
import socket
from dataclasses import replace
from typing import Any

from monarch_nb._wire.invitation import Invitation
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines import shell
from monarch_nb.job.spec import HostSpec

Manifest = dict[str, Any]
"""The JSON object of a Kubernetes manifest."""
CONTAINER = "host"
GPU = "nvidia.com/gpu"
MESH_LABEL, CONTROLLER_LABEL, OWNER_LABEL = "monarch-nb/mesh", "monarch-nb/controller", "monarch-nb/owner"
DIGEST = "monarch-nb/spec"
_MOUNT = "/run/monarch_nb"
INVITATION, REQUEST = f"{_MOUNT}/invitation", f"{_MOUNT}/request"
OWN_INVITATION = "/dev/shm/monarch_nb.invitation"
"""Where the program with a controller writes an invitation to the mesh."""
OWN_INVITATION_VARIABLE = "MONARCH_NB_OWN_INVITATION"
"""The variable that tells it so."""
LAST_WORDS = "/dev/termination-log"
_KEPT_S = 600
"""How long an ended job can be inspected."""
_GRACE_S = 60
_MAX_NAME = 40
_CONTROLLER_NEEDS = {"cpu": "500m", "memory": "512Mi"}


def name_of(allocation: Allocation) -> str:
    """Return the name of a request's job and secret. It's derived from the record of the request, so that
    they can be found if this program ends before the answer arrives.
    """
    asked = f"{allocation.mesh} {allocation.submitted_at} {allocation.submitted_by}"
    return f"mnb-{label(allocation.mesh)}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"


def controller_name_of(allocation: Allocation) -> str:
    """Return the name of the job and the secret of a controller inside."""
    return allocation.controller_id or f"{name_of(allocation)}-controller"


def label(mesh: str) -> str:
    """Return a mesh's name as a valid Kubernetes label.

    >>> label("My_mesh")
    'my-mesh'
    """
    return re.sub(r"[^a-z0-9-]", "-", mesh.lower())[:_MAX_NAME].strip("-") or "mesh"


def job(allocation: Allocation) -> Manifest:
    """Return the job, with as many pods as hosts are wanted at most; each runs on a node of its own unless
    `same_node` is set.
    """
    spec, name = allocation.spec, name_of(allocation)
    num = spec.wanted.most + allocation.plan.num_spares
    labels = _labels(allocation)
    pod = _pod(name, spec, script(spec), resources(spec))
    if spec.own_value("same_node") != "true":
        # Of the whole mesh, as it grows by further jobs: a node is one host, not two.
        ours = {key: labels[key] for key in (MESH_LABEL, OWNER_LABEL)}
        apart = {"labelSelector": {"matchLabels": ours}, "topologyKey": "kubernetes.io/hostname"}
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        pod["affinity"] = {"podAntiAffinity": rule}
    if spec.time_s is not None:
        pod["activeDeadlineSeconds"] = max(1, round(spec.time_s))
    # Hosts that die by themselves exit with 0; what Kubernetes ends may come again.
    return _job(name, spec, labels, num, 2 * num + 4, pod)


def controller_job(allocation: Allocation) -> Manifest:
    """Return the job of a controller inside, a pod without GPUs, on a node that hosts may use, too; it ends
    with its mesh, and isn't started again, as a mesh lives as long as its controller.
    """
    spec, name = allocation.spec, controller_name_of(allocation)
    labels = _labels(allocation)
    labels[CONTROLLER_LABEL] = labels.pop(MESH_LABEL)
    pod = _pod(name, spec, controller_script(spec), {"requests": _CONTROLLER_NEEDS})
    return _job(name, spec, labels, 1, 0, pod)


def _job(
    name: str, spec: HostSpec, labels: dict[str, str], num: int, num_again: int, pod: Manifest
) -> Manifest:
    queue = spec.own_value("queue")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**labels, **({"kueue.x-k8s.io/queue-name": queue} if queue else {})},
            "annotations": {DIGEST: spec.digest()},
        },
        "spec": {
            "parallelism": num,
            "completions": num,
            "backoffLimit": num_again,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {"metadata": {"labels": {**labels, "job-name": name}}, "spec": pod},
        },
    }


def secret(allocation: Allocation, invitation: Invitation, job_uid: str) -> Manifest:
    """Return the secret with the invitation; Kubernetes deletes it together with its job."""
    return _secret(name_of(allocation), allocation, job_uid, {"invitation": invitation.to_json()})


def controller_secret(allocation: Allocation, job_uid: str) -> Manifest:
    """Return the secret with the record of a request, whose plan has variables of the environment."""
    return _secret(controller_name_of(allocation), allocation, job_uid, {"request": allocation.to_json()})


def _secret(name: str, allocation: Allocation, job_uid: str, content: dict[str, str]) -> Manifest:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job_uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": _labels(allocation), "ownerReferences": [owner]},
        "type": "Opaque",
        "stringData": content,
    }


def _labels(allocation: Allocation) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "monarch-nb",
        "app.kubernetes.io/managed-by": "monarch-nb",
        MESH_LABEL: label(allocation.mesh),
        OWNER_LABEL: hashlib.sha256(f"{getpass.getuser()}@{socket.gethostname()}".encode()).hexdigest()[:12],
    }


def _pod(name: str, spec: HostSpec, command: str, needs: Manifest) -> Manifest:
    """Return the pod that runs a shell's script, with the secret of that name.

    Args:
        needs: the resources that it requests.
    """
    mounts = [{"name": "invitation", "mountPath": _MOUNT, "readOnly": True}]
    volumes: list[Manifest] = [{"name": "invitation", "secret": {"secretName": name}}]
    shared: Manifest = {"medium": "Memory"}
    if spec.own_value("shm"):
        shared["sizeLimit"] = spec.own_value("shm")
    volumes.append({"name": "shm", "emptyDir": shared})
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    found: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "volumes": volumes,
        "containers": [
            {
                "name": CONTAINER,
                "image": spec.own_value("image"),
                "command": ["/bin/sh", "-c", command],
                "resources": needs,
                "volumeMounts": mounts,
                "terminationMessagePath": LAST_WORDS,
                "securityContext": {"allowPrivilegeEscalation": False},
            }
        ],
    }
    return found | _chosen(spec)


def _chosen(spec: HostSpec) -> Manifest:
    """Return the profile's settings for the nodes and the user of pods."""
    found: Manifest = {}
    if spec.own_value("pull_secret"):
        found["imagePullSecrets"] = [{"name": spec.own_value("pull_secret")}]
    if node_labels(spec):
        found["nodeSelector"] = node_labels(spec)
    if spec.own_value("tolerate"):
        found["tolerations"] = [
            {"key": key.strip(), "operator": "Exists"} for key in spec.own_value("tolerate").split(",")
        ]
    for key, field in (("service_account", "serviceAccountName"), ("priority", "priorityClassName")):
        if spec.own_value(key):
            found[field] = spec.own_value(key)
    return found


def node_labels(spec: HostSpec) -> dict[str, str]:
    """Return the labels that nodes must have, as in `node_selector = "pool=a100,zone=b"`."""
    pairs = [pair.partition("=") for pair in spec.own_value("node_selector").split(",") if pair]
    return {key.strip(): value.strip() for key, _, value in pairs}


def resources(spec: HostSpec) -> Manifest:
    """Return the resources that each pod requests."""
    given = {key: spec.own_value(key) for key in ("cpu", "memory") if spec.own_value(key)}
    if spec.gpus:
        given[spec.own_value("gpu_resource", GPU)] = str(spec.gpus)
    return {"limits": given, "requests": given} if given else {}


def script(spec: HostSpec) -> str:
    """Return the script of a host's pod, which runs the launcher."""
    return _script(spec, shell.launcher_command(_with_python(spec)), INVITATION)


def controller_script(spec: HostSpec) -> str:
    """Return the script of a controller's pod."""
    program = shell.inside_command(_with_python(spec))
    return _script(spec, f"{OWN_INVITATION_VARIABLE}={OWN_INVITATION} {program}", REQUEST)


def _with_python(spec: HostSpec) -> HostSpec:
    return replace(spec, python=spec.python or "python3")


def _script(spec: HostSpec, command: str, given: str) -> str:
    """Return the script that a pod's shell runs: the profile's setup, then the command, which is sent SIGTERM
    when the pod has to end. The script always exits with 0, because the job would otherwise start the
    host again, which can't rejoin its mesh; errors are written to the pod's termination message.

    Args:
        given: the file that the command reads as its standard input.
    """
    setup = "".join(f"{line}\n" for line in spec.setup)
    words = shlex.quote(LAST_WORDS)
    prepared = f"{{ :\n{setup}}} </dev/null >{words} 2>&1 || exit 0\n: >{words}\n" if setup else ""
    return (
        "trap 'over=1; [ -z \"$host\" ] || kill -TERM $host' TERM\n"
        f"{prepared}{command} <{given} 2>>{words} &\n"
        "host=$!\n"
        'wait $host; [ -z "$over" ] || wait $host\n'
        f"cat {words} >&2\nexit 0\n"
    )
