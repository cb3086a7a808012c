"""Types of requests about named things of a mesh: values, singletons, the mesh itself."""

from __future__ import annotations

from monarch_nb._protocol.base import Plain, Record, Request
from monarch_nb._protocol.rank_spec import GroupSpec


class SetName(Request[Plain], frozen=True):
    """Store a value under a name; returns the value that is stored there now.

    Attributes:
        only_if_new: whether an existing value is kept.
    """

    name: str
    value: Plain
    only_if_new: bool = False


class GetName(Request[Plain], frozen=True):
    """Return the value stored under a name, or None."""

    name: str


class GroupRecord(Record, frozen=True):
    """The ranks of one spawn.

    Attributes:
        procs: in the order of an extent with these `labels` and `sizes`.
        hosts: indices of their hosts.
        env: environment variables that they were started with.
    """

    group: str
    procs: tuple[int, ...]
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    hosts: tuple[int, ...]
    env: dict[str, str] = {}


class SetMesh(Request[None], frozen=True):
    """Declare which ranks are the mesh of this name."""

    record: GroupRecord


class GetMesh(Request[GroupRecord | None], frozen=True):
    """Return which ranks are the mesh; None: it hasn't finished starting."""


class ControllerPlace(Record, frozen=True):
    """The process and actor id of a named singleton; `is_new`: whether the asker has to spawn it."""

    proc: int
    actor_id: int
    is_new: bool


class FindController(Request[ControllerPlace], frozen=True):
    """Say where a named singleton lives.

    Attributes:
        proposed: the actor id that it gets if it's new.
        in_program: whether it's to live in the program that uses the mesh.
        spec: what a process for it is started with.
    """

    name: str
    proposed: int
    in_program: bool
    spec: GroupSpec
