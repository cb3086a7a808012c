"""The base class of jobs, which obtain hosts, report their state, and release them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.gather_mount import gather_mount
from monarch_nb.job.description import MAX_BYTES, Kinds, written
from monarch_nb.remotemount import remotemount


class JobState:
    """The host meshes of a running job, as attributes.

    >>> state = ProcessJob({"trainers": 2}).state()  # doctest: +SKIP
    >>> state.trainers.spawn_procs({"gpus": 4})      # doctest: +SKIP
    """

    def __init__(self, meshes: Mapping[str, HostMesh]) -> None:
        self._meshes = dict(meshes)

    def __getattr__(self, name: str) -> HostMesh:
        meshes = self.__dict__.get("_meshes", {})
        if name in meshes:
            return meshes[name]  # type: ignore[no-any-return]
        raise AttributeError(f"this job has no host mesh {name!r}; it has: {', '.join(meshes) or 'none'}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._meshes]

    def __repr__(self) -> str:
        return f"JobState({', '.join(f'{k}: {v.extent}' for k, v in self._meshes.items())})"


_kinds = Kinds()


class JobTrait(ABC):
    """The base class of all jobs. Subclasses implement how hosts are obtained and released."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _kinds.add(cls)

    def __init__(self) -> None:
        self._is_running = False

    @abstractmethod
    def _create(self) -> None:
        """Obtain the hosts. Called once by `apply`; may return before they have joined."""

    @abstractmethod
    def _state(self) -> JobState:
        """Return handles on the hosts, new ones each time: ending one handle's spawns leaves those of others
        running.

        Raises:
            RuntimeError: if the hosts have ended.
        """

    @abstractmethod
    def _kill(self) -> None:
        """Release the hosts. Called once by `kill`, only after `_create`."""

    def apply(self) -> None:
        """Obtain the hosts, if that hasn't been done."""
        if not self._is_running:
            self._create()
            self._is_running = True

    @property
    def active(self) -> bool:
        """Whether this job has its hosts."""
        return self._is_running

    def state(self, cached_path: str | os.PathLike[str] | None = None) -> JobState:
        """Return handles on the host meshes; obtains the hosts first if needed. The handles of each call are
        independent.

        Args:
            cached_path: file by which another program finds the hosts of this job: if it's there and its job
                runs, these are its hosts; otherwise hosts are obtained that outlive this program, until
                `kill`. Jobs of this machine have nothing to keep: their hosts end with the program.
        """
        self.apply()
        return self._state()

    def kill(self) -> None:
        """Release the hosts, and end everything that runs on them."""
        if self._is_running:
            self._kill()
            self._is_running = False

    def remote_mount(self, source: str, mntpoint: str | None = None, *_args: Any, **_kwargs: Any) -> None:
        """Raise an error that names the alternative to a mount.

        Raises:
            NotImplementedError: always.
        """
        remotemount(self, source, mntpoint)

    def gather_mount(
        self, remote_mount_point: str, local_mount_point: str, *_args: Any, **_kwargs: Any
    ) -> None:
        """Raise an error that names the alternative to a mount.

        Raises:
            NotImplementedError: always.
        """
        gather_mount(self, remote_mount_point, local_mount_point)

    def __enter__(self) -> JobState:
        return self.state()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the description for messages to ranks, without hosts: those belong to the program that has
        obtained them.
        """
        return _described, (type(self), self._fields())

    def _fields(self) -> dict[str, Any]:
        """Return what the job was made of."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def dumps(self) -> bytes:
        """Return the description of this job as JSON, for `job_loads`. Its hosts stay with this program.

        Raises:
            TypeError: if it was made of something that isn't JSON: naming it.
        """
        return written(type(self), self._fields()).encode()

    def dump(self, filename: str | os.PathLike[str]) -> None:
        """Write the description of this job into a file, for `job_load`."""
        path = os.path.realpath(filename)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(self.dumps())


def _described(cls: type[JobTrait], fields: dict[str, Any]) -> JobTrait:
    return cls(**fields)


DEFAULT_JOB_PATH = os.path.join(".monarch", "job_state.pkl")
"""Where Monarch's programs have it; what lies there is JSON."""


def job_loads(data: bytes) -> JobTrait:
    """Return the job that `JobTrait.dumps` has described. It has no hosts yet: `state()` obtains them.

    Raises:
        TypeError: if these bytes are no job's.
    """
    try:
        job, _ = _kinds.read(data)
    except Exception as error:  # a class that is given other fields than it takes may raise any error
        raise TypeError(
            f"job_loads takes what a job's dumps() has returned: {type(error).__name__}: {error}"
        ) from None
    return job  # type: ignore[no-any-return]


def job_load(filename: str | os.PathLike[str] = DEFAULT_JOB_PATH) -> JobTrait:
    """Return the job that `JobTrait.dump` has written into a file.

    Raises:
        FileNotFoundError: if it isn't there.
        TypeError: if it holds no job.
    """
    with open(filename, "rb") as file:
        data = file.read(MAX_BYTES)
    try:
        return job_loads(data)
    except TypeError as error:
        raise TypeError(f"{os.fspath(filename)}: {error}") from None


def check_meshes(meshes: Any) -> dict[str, int]:
    """Return the requested hosts by mesh name, checked.

    Raises:
        TypeError: if it is no mapping of names to numbers.
        ValueError: for a name that is no identifier, or a number below 1.
    """
    if not isinstance(meshes, Mapping):
        raise TypeError(f'a job takes the number of hosts by mesh name, as in {{"hosts": 2}}; not {meshes!r}')
    for name, num in meshes.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"a host mesh's name is an identifier such as 'hosts': {name!r}")
        if isinstance(num, bool) or not isinstance(num, int) or num < 1:
            raise ValueError(f"the number of hosts in {name!r} is an int of at least 1, not {num!r}")
    return dict(meshes)
