"""Types of the answers of a Kubernetes API server, with only the fields that are read here."""

from __future__ import annotations

import msgspec

from monarch_nb.job.engines.base import EngineError

NOT_FOUND, CONFLICT, UNAUTHORIZED = 404, 409, 401
RUNNING = "Running"


class Refused(EngineError):
    """The error of a request that the API server has refused.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"kubernetes: {message}")
        self.status = status


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    """The base class of an answer's types: they have only the fields that are read here; others are
    ignored.
    """


class Meta(_Answer, frozen=True):
    """The metadata of an object."""

    name: str
    uid: str = ""
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None


class Condition(_Answer, frozen=True):
    """A condition of an object, with its status."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None


class JobSpec(_Answer, frozen=True):
    """The specification of a job."""

    parallelism: int = 1


class JobStatus(_Answer, frozen=True):
    """The status of a job."""

    conditions: list[Condition] = []


class Job(_Answer, frozen=True):
    """A job: its pods are the hosts."""

    metadata: Meta
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class Waiting(_Answer, frozen=True):
    """The reason why a container doesn't run yet."""

    reason: str | None = None
    message: str | None = None


class Terminated(_Answer, frozen=True):
    """The end of a container: its exit code, and the reason."""

    exit_code: int
    reason: str | None = None
    message: str | None = None


class ContainerState(_Answer, frozen=True):
    """The state of a container: waiting, terminated, or neither."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Answer, frozen=True):
    """A container by name."""

    name: str
    state: ContainerState = ContainerState()


class PodSpec(_Answer, frozen=True):
    """The specification of a pod: its node, and for how long it may run."""

    node_name: str | None = None
    active_deadline_seconds: int | None = None


class PodStatus(_Answer, frozen=True):
    """The status of a pod."""

    phase: str = ""
    reason: str | None = None
    message: str | None = None
    start_time: str | None = None
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []


class Pod(_Answer, frozen=True):
    """A pod."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(_Answer, frozen=True):
    """The specification of a node: whether it's closed to new pods."""

    unschedulable: bool | None = None


class NodeStatus(_Answer, frozen=True):
    """The status of a node: the resources that pods may take, and the node's conditions."""

    allocatable: dict[str, str] = {}
    conditions: list[Condition] = []


class Node(_Answer, frozen=True):
    """A node."""

    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Event(_Answer, frozen=True):
    """An event of Kubernetes about an object."""

    reason: str | None = None
    message: str | None = None
