"""A real Kubernetes of a test's own: etcd, API server, controllers and scheduler on this machine, and nodes
whose kubelet is a thread of ours: it runs what pods say as processes, and tells the API server how they are.

No registry of packages has the server; `build_kubernetes.sh` beside this makes it from Debian's source.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubelet_streams import Streams
from processes import TAG
from waiting import wait_until

BIN = os.environ.get("MONARCH_NB_TEST_KUBERNETES", "")
_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_TOKEN, USER_TOKEN = "admin-token", "user-token"
MISSING_IMAGE = "nowhere/missing:1"
IMAGE = "team/monarch:1"
PYTHON = sys.executable
HAS_CLIENT = importlib.util.find_spec("kubernetes") is not None
Object = dict[str, Any]


def why_not() -> str:
    """Return why there's no Kubernetes here; empty if there can be one."""
    if not BIN:
        return "no Kubernetes: MONARCH_NB_TEST_KUBERNETES = what tests/engines/build_kubernetes.sh has made"
    missing = [name for name in _PROGRAMS if not os.access(f"{BIN}/{name}", os.X_OK)]
    if missing:
        return f"no {missing[0]} in {BIN}: tests/engines/build_kubernetes.sh makes it"
    if not HAS_CLIENT:
        return "no client: pip install kubernetes"
    return "" if shutil.which("etcd") else "no etcd: apt-get install etcd-server"


def _free_ports(num: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(num)]
    try:
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Kube:
    """An API server with three nodes k1 to k3 of two GPUs each.

    Attributes:
        config: an administrator's kubeconfig.
        user_config: that of somebody who may look at pods only.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.config, self.user_config = folder, folder / "admin.conf", folder / "user.conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd, self._peers, self._port, manager, scheduler = _free_ports(5)
        self.url = f"https://127.0.0.1:{self._port}"
        self._insecure = ssl._create_unverified_context()
        subprocess.run(
            ["openssl", "genrsa", "-out", folder / "sa.key", "2048"], check=True, capture_output=True
        )
        (folder / "tokens.csv").write_text(
            f"{_TOKEN},admin,admin,system:masters\n{USER_TOKEN},user,user,people\n"
        )
        self.write_config(self.config, _TOKEN)
        self.write_config(self.user_config, USER_TOKEN)
        self._serve()
        wait_until(self._is_ready, f"an API server that is ready: {folder}")
        own = (f"--kubeconfig={self.config}", "--leader-elect=false", "--bind-address=127.0.0.1", "--port=0")
        self._run(
            "kube-controller-manager",
            *own,
            f"--secure-port={manager}",
            f"--service-account-private-key-file={folder}/sa.key",
            f"--cert-dir={folder}/pki",
            "--node-monitor-grace-period=1h",
            "--use-service-account-credentials=false",
        )
        self._run("kube-scheduler", *own, f"--secure-port={scheduler}", f"--cert-dir={folder}/pki")
        self.streams = Streams(folder, self._mounted_for)
        for i in (1, 2, 3):
            self._make_node(f"k{i}")
        self.make_namespace("default")
        self.kubelet = Kubelet(self)

    def write_config(self, path: Path, token: str, server: str = "") -> None:
        """Write a kubeconfig."""
        cluster = {"server": server or self.url, "certificate-authority": f"{self.folder}/pki/apiserver.crt"}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": token}}],
                    "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "lab",
                }
            )
        )

    def _serve(self) -> None:
        etcd, folder = f"http://127.0.0.1:{self._etcd}", self.folder
        peers = f"--listen-peer-urls=http://127.0.0.1:{self._peers}"
        listen = (f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}", peers)
        self._run("etcd", f"--data-dir={folder}/etcd", "--unsafe-no-fsync", *listen)
        self._serve_api()

    def _serve_api(self) -> None:
        etcd, folder = f"http://127.0.0.1:{self._etcd}", self.folder
        self._run(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            "--insecure-port=0",
            f"--cert-dir={folder}/pki",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--service-account-key-file={folder}/sa.key",
            f"--service-account-signing-key-file={folder}/sa.key",
            "--service-account-issuer=https://test",
            "--authorization-mode=RBAC",
            f"--token-auth-file={folder}/tokens.csv",
            "--endpoint-reconciler-type=none",
        )

    def _run(self, program: str, *arguments: str) -> None:
        path = program if program == "etcd" else f"{BIN}/{program}"
        with open(self.folder / f"{program}.log", "ab") as log:
            made = subprocess.Popen([path, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._processes[program] = made

    def _is_ready(self) -> bool:
        try:
            return self.ask("GET", "/readyz") is not None
        except OSError:
            return False

    def stop_api(self) -> None:
        """Kill the API server."""
        self._processes["kube-apiserver"].kill()
        self._processes["kube-apiserver"].wait()

    def start_api(self) -> None:
        """Start the API server again."""
        self._serve_api()
        wait_until(self._is_ready, f"an API server that is ready again: {self.folder}")

    def ask(self, method: str, path: str, body: Object | None = None) -> Any:
        """Ask the API server as an administrator; return its answer."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, context=self._insecure, timeout=20) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def _make_node(self, name: str) -> None:
        labels = {"kubernetes.io/hostname": name, "pool": "odd" if name == "k2" else "even"}
        self.ask("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        has = {"cpu": "4", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "2"}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "reason": "x", "message": "x"}
        ready |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
        where = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.streams.port}},
        }
        status = {"status": {"capacity": has, "allocatable": has, "conditions": [ready], **where}}
        self.ask("PATCH", f"/api/v1/nodes/{name}/status", status)
        self.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    def make_namespace(self, name: str) -> None:
        """Make a namespace, if it isn't there, in which pods can be made."""
        with suppress(urllib.error.HTTPError):
            self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

        def has_account() -> bool:
            with suppress(urllib.error.HTTPError):
                return bool(self.ask("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default"))
            return False

        wait_until(has_account, f"a service account in {name}")

    def names(self, kind: str, namespace: str = "default") -> list[str]:
        """Return what there is of jobs, pods or secrets of ours."""
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        chosen = "labelSelector=app.kubernetes.io/managed-by%3Dmonarch-nb"
        found = self.ask("GET", f"{group}/namespaces/{namespace}/{kind}?{chosen}")
        return [each["metadata"]["name"] for each in found["items"]]

    def _mounted_for(self, pod: str, command: list[str]) -> list[str]:
        space, _, name = pod.partition("/")
        found = self.ask("GET", f"/api/v1/namespaces/{space}/pods/{name}")
        return _mounted(command, self.folder / "pods" / found["metadata"]["uid"])

    def close(self) -> None:
        """End all of it."""
        self.kubelet.close()
        self.streams.close()
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()


class Kubelet(threading.Thread):
    """Runs the containers of all nodes as processes."""

    def __init__(self, kube: Kube) -> None:
        super().__init__(daemon=True)
        self._kube, self._over = kube, threading.Event()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        """By a pod's uid."""
        self._reported: set[str] = set()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.1):
            with suppress(OSError):  # the server answers later, or is about to end
                for pod in self._kube.ask("GET", "/api/v1/pods")["items"]:
                    with suppress(urllib.error.HTTPError):  # its secret isn't there yet: tried again
                        self._see_to(pod)

    def close(self) -> None:
        self._over.set()
        self.join()
        for process in self.running.values():
            self._end_rest(process)
            process.wait()

    def _end_rest(self, process: subprocess.Popen[bytes] | None) -> None:
        """Kill what a container's first process has left: its end is the end of all of them."""
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _see_to(self, pod: Object) -> None:
        uid, process = pod["metadata"]["uid"], self.running.get(pod["metadata"]["uid"])
        is_ours = pod["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") == "monarch-nb"
        if not pod["spec"].get("nodeName") or not is_ours:
            return
        if "deletionTimestamp" in pod["metadata"]:
            if process is not None and process.poll() is None:
                process.terminate()
            else:
                self._end_rest(process)
                self._kube.ask("DELETE", f"{_path(pod)}?gracePeriodSeconds=0")
        elif uid not in self._reported:
            self._start(pod)
        elif process is not None and process.poll() is not None and pod["status"].get("phase") == "Running":
            self._ended(pod, process.returncode)

    def _start(self, pod: Object) -> None:
        (container,) = pod["spec"]["containers"]
        uid, folder = pod["metadata"]["uid"], self._folder(pod)
        if container["image"] == MISSING_IMAGE:
            waiting = {"reason": "ErrImagePull", "message": f"manifest for {MISSING_IMAGE} not found"}
            self._tell(pod, "Pending", {"waiting": waiting})
            self._reported.add(uid)
            return
        (name,) = [v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v]
        space = pod["metadata"]["namespace"]
        secret = self._kube.ask("GET", f"/api/v1/namespaces/{space}/secrets/{name}")
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in secret["data"].items():
            (folder / file).write_bytes(base64.b64decode(content))
        self._reported.add(uid)
        environment = {**os.environ, TAG[0]: TAG[1], "PATH": os.defpath}
        self.running[uid] = subprocess.Popen(
            _mounted(container["command"], folder),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._tell(pod, "Running", {"running": {}})

    def _ended(self, pod: Object, code: int) -> None:
        words = self._folder(pod) / "words"
        output = words.read_text()[-4096:] if words.exists() else ""
        terminated = {"exitCode": code, "reason": "Error" if code else "Completed", "message": output}
        self._tell(pod, "Failed" if code else "Succeeded", {"terminated": terminated})

    def _tell(self, pod: Object, phase: str, state: Object) -> None:
        (container,) = pod["spec"]["containers"]
        status = {"name": container["name"], "state": state, "ready": False, "restartCount": 0}
        status |= {"image": container["image"], "imageID": ""}
        now = pod["status"].get("startTime") or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        body = {"status": {"phase": phase, "startTime": now, "containerStatuses": [status]}}
        self._kube.ask("PATCH", f"{_path(pod)}/status", body)

    def _folder(self, pod: Object) -> Path:
        return self._kube.folder / "pods" / pod["metadata"]["uid"]


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _mounted(command: list[str], folder: Path) -> list[str]:
    """Return a container's command with what is mounted there as it lies here."""
    where = {
        "/run/monarch_nb/invitation": folder / "invitation",
        "/run/monarch_nb/request": folder / "request",
        "/dev/termination-log": folder / "words",
        "/dev/shm/monarch_nb.invitation": folder / "own-invitation",
    }
    found = command
    for inside, path in where.items():
        found = [word.replace(inside, str(path)) for word in found]
    return found
