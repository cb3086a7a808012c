"""What a job is: something that can be asked for hosts, says how they are, and gives them back."""

from __future__ import annotations

import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from monarch_nb.actor.host_mesh import HostMesh


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


class JobTrait(ABC):
    """Base of all jobs. Subclasses say how hosts are had and how they are given back."""

    def __init__(self) -> None:
        self._state: JobState | None = None

    @abstractmethod
    def _create(self) -> JobState:
        """Get the hosts. Called once by `apply`; may return before they have joined."""

    @abstractmethod
    def _kill(self) -> None:
        """Give the hosts back. Called once by `kill`, only after `_create`."""

    def apply(self) -> None:
        """Get the hosts, if that hasn't been done."""
        if self._state is None:
            self._state = self._create()

    def state(self, cached_path: str | os.PathLike[str] | None = None) -> JobState:
        """Return the host meshes, getting the hosts first if need be.

        Args:
            cached_path: where a batch job keeps its description, so that another program finds the same hosts. Jobs of this machine
                have nothing to keep: their hosts are found through the mesh.
        """
        self.apply()
        assert self._state is not None
        return self._state

    def kill(self) -> None:
        """Give the hosts back, with all that runs on them."""
        if self._state is not None:
            self._kill()
            self._state = None

    def __enter__(self) -> JobState:
        return self.state()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def dumps(self) -> bytes:
        """Return the description of this job, without its state."""
        fields = {k: v for k, v in self.__dict__.items() if not k.startswith("_")}
        return pickle.dumps((type(self), fields))


def check_meshes(meshes: Any) -> dict[str, int]:
    """Return the wanted hosts by mesh name, checked.

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
