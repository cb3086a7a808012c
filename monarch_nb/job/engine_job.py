"""Jobs on hosts of an engine, under Monarch's names: they belong to the program, and release their hosts when
they are killed.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

from monarch_nb._client import session as sessions
from monarch_nb._client.claims import abandon, claimed
from monarch_nb._client.session import Session
from monarch_nb._protocol.ranks import StopHosts
from monarch_nb._shape import Extent, Shape
from monarch_nb._units import parse_duration
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.exceptions import MeshError, MeshUsageError
from monarch_nb.job import allocation as records
from monarch_nb.job import cached
from monarch_nb.job.allocation import Allocation, Plan
from monarch_nb.job.base import JobState, JobTrait, check_meshes
from monarch_nb.job.engines import Engine, engine_of, ignored
from monarch_nb.job.joining import Wait, adopt, reserve
from monarch_nb.job.recall import drop, end_all
from monarch_nb.job.spec import HostRange, HostSpec, machines

_numbers = itertools.count(1)


class EngineJob(JobTrait):
    """The base class of jobs on hosts of an engine, under the names that Monarch gives them."""

    def __init__(self, meshes: Mapping[str, int], timeout_s: float | None = None) -> None:
        super().__init__()
        self._sizes = check_meshes(meshes)
        self._timeout_s = timeout_s
        self._asked: Allocation | None = None
        self._session: Session | None = None
        self._joined: list[int] = []
        self._cached_path = ""
        self._name = ""

    def spec(self) -> HostSpec:
        """Return the specification of the hosts that this job requests."""
        raise NotImplementedError

    def can_run(self, spec: EngineJob) -> str:
        """Return the differences that prevent another job from using this one's hosts, as text; empty if it
        can. A running job is never ended for it.
        """
        return self.spec().difference(spec.spec())

    def state(self, cached_path: str | os.PathLike[str] | None = None) -> JobState:
        """Return handles on the host meshes, as `JobTrait.state` does.

        Raises:
            MeshUsageError: if the job of `cached_path` runs with other hosts than this one asks for; or if
                this job has its hosts already, and they end with the program.
        """
        path = os.path.realpath(cached_path) if cached_path is not None else self._cached_path
        if self.active and path != self._cached_path:
            raise MeshUsageError(
                f"this job has its hosts already, and they're not those of {path}: give cached_path at the "
                "first state(); or kill() it before"
            )
        self._cached_path = path
        return super().state()

    def _create(self) -> None:
        # Under a lock, two programs with the same file have one job.
        with records.lock_records() if self._cached_path else nullcontext():
            spec = self.spec()
            if not (self._cached_path and self._is_reattached(spec)):
                self._obtain(spec)

    def _obtain(self, spec: HostSpec) -> None:
        """Request the hosts.

        Raises:
            MeshUsageError: if they can't be had.
        """
        engine = engine_of(spec)
        if unheeded := ignored(spec):
            raise MeshUsageError(f"{type(self).__name__}: {unheeded}")
        usable = engine.usable(spec)
        problems = engine.check(spec) if usable else [usable.why_not]
        if problems:
            raise MeshUsageError(f"{type(self).__name__}: {'; '.join(problems)}")
        try:
            self._ask(engine, spec)
        except BaseException as error:
            if self._name:
                drop(self._asked or Allocation.new(self._name, spec.engine, spec, Plan()), error)
            self._asked = None
            self._forget()
            raise

    def _ask(self, engine: Engine, spec: HostSpec) -> None:
        """Request the hosts, for a mesh that outlives this program if others are to find it."""
        self._name = cached.new_name() if self._cached_path else f"job-{os.getpid()}-{next(_numbers)}"
        self._session = claimed(self._name, has_ranks=False) if self._cached_path else sessions.current()
        asked = Allocation.new(self._name, spec.engine, spec, Plan())
        asked, invitation = reserve(self._session, engine, asked)
        if self._cached_path:
            adopt(self._session, asked, None)
        records.write_record(asked)
        if self._cached_path:
            cached.write(self._cached_path, self.dumps(), self._name)
        self._asked = engine.submit(asked, invitation)
        records.write_record(self._asked)

    def _is_reattached(self, spec: HostSpec) -> bool:
        """Take the hosts of the job that a file names; return False if that doesn't run.

        Raises:
            MeshUsageError: if it runs with other hosts.
        """
        found = cached.running(self._cached_path)
        if found is None:
            return False
        self._asked, self._session = found
        self._name = self._asked.mesh
        if difference := self._asked.spec.difference(spec):
            self._session.close()
            path = self._cached_path
            self._asked = None
            raise MeshUsageError(
                f"the job of {path} runs with other hosts: {difference}. End it: %mesh cancel {self._name}; "
                "or keep it, and give this one another cached_path"
            )
        cached.stop_left(self._session)
        return True

    def _forget(self) -> None:
        """Leave the mesh of a job that others could find, and its file."""
        if self._cached_path and self._session is not None:
            abandon(self._session)
            cached.remove(self._cached_path, self._name)
        self._session, self._name = None, ""

    def _state(self) -> JobState:
        assert self._asked is not None and self._session is not None
        if not self._joined:
            self._joined = self._wait(self._asked, self._session)
        found, at = {}, 0
        for name, num in self._sizes.items():
            found[name] = HostMesh(
                self._joined[at : at + num], Shape.full(Extent(["hosts"], [num])), self._session
            )
            at += num
        return JobState(found)

    def _wait(self, asked: Allocation, session: Session) -> list[int]:
        try:
            joined = Wait(session, engine_of(asked.spec), asked, lambda _text: None).until_joined(
                self._timeout_s
            )
        except TimeoutError:
            raise MeshError(
                f"{asked.described()}: no hosts within {self._timeout_s:g} s. It waits on: state() "
                "again; give up: kill()"
            ) from None
        records.write_record(replace(asked, is_up=True))
        return joined

    def _kill(self) -> None:
        if self._session is not None and self._joined:
            with suppress(MeshError):  # this program's mesh may have ended before
                self._session.request(StopHosts(self._joined))
        self._give_back()

    def _give_back(self) -> None:
        asked, self._asked, self._joined = self._asked, None, []
        if asked is not None:
            end_all(asked)
            records.remove_record(asked.mesh)
        self._forget()


class SSHJob(EngineJob):
    """A job on hosts reached by ssh.

    Args:
        hosts: names of ~/.ssh/config or addresses, by mesh name.
        python_exe: interpreter on the hosts.
        config: ssh configuration file, instead of the user's.
        setup: shell lines before the interpreter.

    Example:
        >>> job = SSHJob({"trainers": ["node1", "node2"]})  # doctest: +SKIP
        >>> procs = job.state().trainers.spawn_procs({"gpus": 8})  # doctest: +SKIP
        >>> job.kill()  # doctest: +SKIP
    """

    def __init__(
        self,
        hosts: Mapping[str, Sequence[str]],
        python_exe: str = sys.executable,
        config: str = "",
        setup: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> None:
        self.hosts = {name: machines(each) for name, each in hosts.items()}
        self.python_exe, self.config, self.setup = python_exe, config, tuple(setup)
        self.timeout_s = timeout_s
        super().__init__({name: len(each) for name, each in self.hosts.items()}, timeout_s)

    def spec(self) -> HostSpec:
        own = (("config", self.config),) if self.config else ()
        named = machines([name for each in self.hosts.values() for name in each])
        return HostSpec("ssh", machines=named, python=self.python_exe, setup=self.setup, own=own)


class SlurmJob(EngineJob):
    """A job of Slurm, whose nodes are the hosts.

    Args:
        meshes: number of nodes by mesh name.
        python_exe: interpreter on the nodes.
        slurm_args: further flags of sbatch, as in `["--qos=high"]`.
        job_start_timeout: seconds that `state` waits; by default for ever. After a timeout the job stays in
            the queue.

    Example:
        >>> job = SlurmJob({"trainers": 4}, gpus_per_node=8, time_limit="2:00:00")  # doctest: +SKIP
        >>> procs = job.state().trainers.spawn_procs({"gpus": 8})  # doctest: +SKIP
        >>> job.kill()  # doctest: +SKIP

    Raises:
        MeshUsageError: for a flag or a time that can't be.
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        python_exe: str = sys.executable,
        slurm_args: Sequence[str] = (),
        job_name: str = "",
        time_limit: str | None = None,
        partition: str | None = None,
        exclusive: bool = False,
        gpus_per_node: int | None = None,
        cpus_per_task: int | None = None,
        mem: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        setup: Sequence[str] = (),
        job_start_timeout: float | None = None,
    ) -> None:
        super().__init__(meshes, job_start_timeout)
        self.meshes = self._sizes
        self.python_exe, self.slurm_args, self.job_name, self.time_limit = (
            python_exe,
            tuple(slurm_args),
            job_name,
            time_limit,
        )
        self.partition, self.exclusive, self.gpus_per_node, self.cpus_per_task = (
            partition,
            exclusive,
            gpus_per_node,
            cpus_per_task,
        )
        self.mem, self.account, self.qos, self.setup, self.job_start_timeout = (
            mem,
            account,
            qos,
            tuple(setup),
            job_start_timeout,
        )
        self.spec()

    def spec(self) -> HostSpec:
        num = sum(self.meshes.values())
        given = {
            "job-name": self.job_name,
            "cpus-per-task": self.cpus_per_task,
            "mem": self.mem,
            "qos": self.qos,
            "exclusive": self.exclusive and "true",
        }
        own = {key: str(value) for key, value in given.items() if value} | dict(map(_flag, self.slurm_args))
        return HostSpec(
            "slurm",
            HostRange(num, num),
            gpus=self.gpus_per_node,
            time_s=_limit(self.time_limit),
            partition=self.partition or "",
            account=self.account or "",
            python=self.python_exe,
            setup=self.setup,
            own=tuple(own.items()),
        )


class RayJob(EngineJob):
    """A job on nodes of a Ray cluster.

    Args:
        meshes: number of nodes by mesh name.
        address: of the cluster, as `ray.init` takes it.
        python_exe: interpreter on the nodes; it needs no ray.
        driver: interpreter here that has ray, in the cluster's version.
        job_start_timeout: seconds that `state` waits for; by default for ever.

    Example:
        >>> job = RayJob({"trainers": 4}, gpus_per_node=8)  # doctest: +SKIP
        >>> procs = job.state().trainers.spawn_procs({"gpus": 8})  # doctest: +SKIP
        >>> job.kill()  # doctest: +SKIP
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        address: str = "auto",
        python_exe: str = sys.executable,
        driver: str = sys.executable,
        gpus_per_node: int | None = None,
        cpus_per_node: int = 1,
        setup: Sequence[str] = (),
        job_start_timeout: float | None = None,
    ) -> None:
        super().__init__(meshes, job_start_timeout)
        self.meshes, self.address, self.python_exe, self.driver = self._sizes, address, python_exe, driver
        self.gpus_per_node, self.cpus_per_node, self.setup = gpus_per_node, cpus_per_node, tuple(setup)
        self.job_start_timeout = job_start_timeout

    def spec(self) -> HostSpec:
        num = sum(self.meshes.values())
        own = (("address", self.address), ("driver", self.driver), ("cpus", str(self.cpus_per_node)))
        wanted, python, setup = HostRange(num, num), self.python_exe, self.setup
        return HostSpec("ray", wanted, gpus=self.gpus_per_node, python=python, setup=setup, own=own)


class KubernetesJob(EngineJob):
    """A job on pods of a Kubernetes cluster, each on a node of its own.

    Args:
        meshes: number of pods by mesh name.
        image: container image of the pods, which has monarch_nb.
        namespace: by default the kubeconfig's.
        kubeconfig, context: by default what kubectl uses, or the pod's own account.
        python_exe: interpreter in the image.
        gpus_per_node, cpus_per_node, memory: resources of each pod; memory as in `64Gi`.
        own: further settings of `[NAME.kubernetes]`, as `{"queue": "team"}`.
        job_start_timeout: seconds that `state` waits for; by default for ever.

    Example:
        >>> job = KubernetesJob({"trainers": 4}, image="team/train:1", gpus_per_node=8)  # doctest: +SKIP
        >>> procs = job.state().trainers.spawn_procs({"gpus": 8})  # doctest: +SKIP
        >>> job.kill()  # doctest: +SKIP
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        image: str,
        namespace: str = "",
        kubeconfig: str = "",
        context: str = "",
        python_exe: str = "python3",
        gpus_per_node: int | None = None,
        cpus_per_node: int | None = None,
        memory: str = "",
        setup: Sequence[str] = (),
        own: Mapping[str, str] | None = None,
        job_start_timeout: float | None = None,
    ) -> None:
        super().__init__(meshes, job_start_timeout)
        self.meshes, self.python_exe, self.gpus_per_node = self._sizes, python_exe, gpus_per_node
        self.image, self.namespace, self.kubeconfig, self.context = image, namespace, kubeconfig, context
        self.cpus_per_node, self.memory, self.setup = cpus_per_node, memory, tuple(setup)
        self.own, self.job_start_timeout = dict(own or {}), job_start_timeout

    def spec(self) -> HostSpec:
        num = sum(self.meshes.values())
        given = {
            "image": self.image,
            "namespace": self.namespace,
            "kubeconfig": self.kubeconfig,
            "context": self.context,
            "cpu": self.cpus_per_node and str(self.cpus_per_node),
            "memory": self.memory,
            **self.own,
        }
        own = tuple((key, str(value)) for key, value in given.items() if value)
        wanted, python, setup = HostRange(num, num), self.python_exe, self.setup
        return HostSpec("kubernetes", wanted, gpus=self.gpus_per_node, python=python, setup=setup, own=own)


class SkyPilotJob(EngineJob):
    """A job on machines of a cloud, by SkyPilot: a cluster of its own, which is taken down in the end.

    Args:
        meshes: number of machines by mesh name.
        accelerators: kind of GPU, as in `A100`; SkyPilot chooses a cloud that has it.
        python_exe: interpreter with monarch_nb on the machines.
        gpus_per_node: GPUs of each.
        own: further settings of `[NAME.skypilot]`, as `{"infra": "aws/us-east-1", "spot": "true"}`.
        setup: shell lines before the interpreter.
        job_start_timeout: seconds that `state` waits for; by default for ever.

    Example:
        >>> job = SkyPilotJob({"trainers": 2}, "A100", "/opt/env/bin/python", 8)  # doctest: +SKIP
        >>> procs = job.state().trainers.spawn_procs({"gpus": 8})  # doctest: +SKIP
        >>> job.kill()  # doctest: +SKIP
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        accelerators: str = "",
        python_exe: str = "python3",
        gpus_per_node: int | None = None,
        own: Mapping[str, str] | None = None,
        setup: Sequence[str] = (),
        job_start_timeout: float | None = None,
    ) -> None:
        super().__init__(meshes, job_start_timeout)
        self.meshes, self.accelerators, self.python_exe = self._sizes, accelerators, python_exe
        self.gpus_per_node, self.own, self.setup = gpus_per_node, dict(own or {}), tuple(setup)
        self.job_start_timeout = job_start_timeout

    def spec(self) -> HostSpec:
        num = sum(self.meshes.values())
        given = {"accelerators": self.accelerators, **self.own}
        own = tuple((key, value) for key, value in given.items() if value)
        wanted, python, setup = HostRange(num, num), self.python_exe, self.setup
        return HostSpec("skypilot", wanted, gpus=self.gpus_per_node, python=python, setup=setup, own=own)


class LightningJob(EngineJob):
    """A job on machines of Lightning AI; the program runs in a Studio.

    Args:
        meshes: number of machines by mesh name.
        machine: their kind, a name of `lightning_sdk.Machine`: `H100_X_8`.
        python_exe: interpreter with monarch_nb on the machines: by default this one, which the Studio shares.
        gpus_per_node: GPUs of each; by default what the machines have.
        own: further settings of `[NAME.lightning]`, as `{"teamspace": "lab/research"}`.
        setup: shell lines before the interpreter.
        job_start_timeout: seconds that `state` waits for; by default for ever.

    Example:
        >>> job = LightningJob({"trainers": 32}, "H100_X_8")  # doctest: +SKIP
        >>> procs = job.state().trainers.spawn_procs({"gpus": 8})  # doctest: +SKIP
        >>> job.kill()  # doctest: +SKIP
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        machine: str,
        python_exe: str = sys.executable,
        gpus_per_node: int | None = None,
        own: Mapping[str, str] | None = None,
        setup: Sequence[str] = (),
        job_start_timeout: float | None = None,
    ) -> None:
        super().__init__(meshes, job_start_timeout)
        self.meshes, self.machine, self.python_exe = self._sizes, machine, python_exe
        self.gpus_per_node, self.own, self.setup = gpus_per_node, dict(own or {}), tuple(setup)
        self.job_start_timeout = job_start_timeout

    def spec(self) -> HostSpec:
        num = sum(self.meshes.values())
        own = tuple({"machine": self.machine, **self.own}.items())
        wanted, python, setup = HostRange(num, num), self.python_exe, self.setup
        return HostSpec("lightning", wanted, gpus=self.gpus_per_node, python=python, setup=setup, own=own)


def _flag(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key.startswith("--") or len(shlex.split(text)) != 1 or "\n" in text:
        raise MeshUsageError(f"slurm_args has flags of sbatch, each as --KEY=VALUE or --KEY; not {text!r}")
    return key.removeprefix("--"), value if equals else "true"


def _limit(text: str | None) -> float | None:
    """Return seconds of Slurm's HH:MM:SS, or of 2h."""
    if text is None:
        return None
    parts = text.split(":")
    try:
        return (
            parse_duration(text)
            if len(parts) == 1
            else float(sum(int(part) * 60**i for i, part in enumerate(reversed(parts))))
        )
    except ValueError:
        raise MeshUsageError(f"a time limit is HH:MM:SS or as in 2h, not {text!r}") from None
