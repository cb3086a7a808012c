"""Requests to a Kubernetes API server, by the official client; answers are converted to types of this
package.

Imported where it's used: the client takes most of a second to load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from monarch_nb.job.engines.base import EngineError
from monarch_nb.job.engines.kubernetes_answers import NOT_FOUND, RUNNING, UNAUTHORIZED, Pod, Refused
from monarch_nb.job.spec import HostSpec, nearest

TIMES_S = (2.0, 20.0)
"""Time limits for a connection, and for an answer."""
_OWN_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
T = TypeVar("T")


class Api:
    """A client of an API server, for one user and one namespace.

    Attributes:
        is_within: whether this program runs in a pod of the cluster, and so reaches others.

    Raises:
        EngineError: if there's no kubeconfig, if it isn't one, or if it has no such context.
    """

    def __init__(self, spec: HostSpec) -> None:
        context = spec.own_value("context")
        path = os.path.expanduser(spec.own_value("kubeconfig")) or None
        self.is_within = not (path or _has_file())
        try:
            self.client, home = _from_pod() if self.is_within else _from_file(path, context)
        except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError) as error:
            raise EngineError(_no_config(path, context, error)) from None
        self.namespace = spec.own_value("namespace") or home or "default"
        self.core, self.batch = client.CoreV1Api(self.client), client.BatchV1Api(self.client)

    @property
    def server(self) -> str:
        """The address of the API server."""
        return str(self.client.configuration.host)

    def call(self, kind: type[T], method: Callable[..., object], *args: object, **kwargs: object) -> T:
        """Send a request to the server; return the answer as a type of this package.

        Raises:
            Refused: if the server refuses the request, with its message.
            EngineError: if the server can't be reached, or its answer is invalid.
        """
        try:
            answer = method(*args, _request_timeout=TIMES_S, **kwargs)
        except ApiException as error:
            raise self._refused(error) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise EngineError(f"no Kubernetes answers at {self.server} ({_cause(error)})") from None
        try:
            return msgspec.convert(self.client.sanitize_for_serialization(answer), kind)
        except msgspec.ValidationError as error:
            raise EngineError(f"{self.server} has given an answer that isn't understood: {error}") from None

    def found(
        self, kind: type[T], method: Callable[..., object], *args: object, **kwargs: object
    ) -> T | None:
        """Return the object of this name; None if there is none."""
        try:
            return self.call(kind, method, *args, **kwargs)
        except Refused as refused:
            if refused.status == NOT_FOUND:
                return None
            raise

    def listed(
        self, kind: type[T], method: Callable[..., object], *args: object, **kwargs: object
    ) -> list[T]:
        """Return the items of a list."""
        answer = self.call(dict[str, Any], method, *args, **kwargs)
        return msgspec.convert(answer.get("items") or [], list[kind])  # type: ignore[valid-type]

    def pods_of(self, job: str) -> list[Pod]:
        """Return the pods of a job."""
        return self.listed(
            Pod, self.core.list_namespaced_pod, self.namespace, label_selector=f"job-name={job}"
        )

    def running_pod(self, job: str) -> str:
        """Return the name of a job's first pod that runs; empty if none does."""
        return next((pod.metadata.name for pod in self.pods_of(job) if pod.status.phase == RUNNING), "")

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Return whether this user has a permission in the namespace.

        Args:
            resource: `pods`, or a part of one, as in `pods/exec`.
        """
        resource, _, part = resource.partition("/")
        attributes = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        attributes |= {"subresource": part} if part else {}
        review = {"spec": {"resourceAttributes": attributes}}
        answer = self.call(
            dict[str, Any], client.AuthorizationV1Api(self.client).create_self_subject_access_review, review
        )
        return bool(answer["status"].get("allowed"))

    def _refused(self, error: ApiException) -> Refused:
        status, message = int(error.status or 0), _message_of(error)
        if status == UNAUTHORIZED:
            message = f"{self.server} doesn't know you ({message}): log in again, then try: kubectl get pods"
        return Refused(status, message)


def _message_of(error: ApiException) -> str:
    """Return the server's error message."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason or error)


def _cause(error: BaseException) -> str:
    found = getattr(error, "reason", None) or error
    return str(found).rpartition(": ")[2] or type(found).__name__


# --- finding the server


def _has_file() -> bool:
    """Return whether a kubeconfig exists at one of the standard places."""
    paths = os.environ.get("KUBECONFIG", "") or os.path.expanduser("~/.kube/config")
    return any(os.path.exists(os.path.expanduser(path)) for path in paths.split(os.pathsep))


def _from_file(path: str | None, context: str) -> tuple[client.ApiClient, str]:
    # The client reads the variable only once, when it's imported.
    path = path or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    contexts, active = config.list_kube_config_contexts(path)
    known: Mapping[str, Any] = {each["name"]: each for each in contexts}
    chosen = context or active["name"]
    if chosen not in known:
        raise config.ConfigException(
            f"there is no context {context!r}.{nearest(context, known)} Known: {', '.join(known)}"
        )
    found = config.new_client_from_config(path, chosen, client_configuration=_configuration())
    return found, str(known[chosen].get("context", {}).get("namespace") or "")


def _configuration() -> client.Configuration:
    found = client.Configuration()
    found.retries = False  # an unreachable server is reported at once
    return found


def _from_pod() -> tuple[client.ApiClient, str]:
    """Return the client of a program in a pod, which uses the pod's service account."""
    found = _configuration()
    config.load_incluster_config(found)
    with open(_OWN_NAMESPACE) as file:
        return client.ApiClient(found), file.read().strip()


def _no_config(path: str | None, context: str, error: Exception) -> str:
    if "no context" in str(error):
        return f"{error}: context = in [.kubernetes]"
    if path is None and not _has_file():
        return (
            "there is no kubeconfig, and this isn't a pod: kubectl config view says what there is; name the "
            "file: kubeconfig = in [.kubernetes]"
        )
    where = path or os.environ.get("KUBECONFIG") or "~/.kube/config"
    return f"the kubeconfig {where} can't be used: {' '.join(str(error).split())}"
