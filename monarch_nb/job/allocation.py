"""Records of requests for hosts and of the hosts obtained: a file for each mesh that runs on hosts of an
engine. The files outlive the program, so that no host is forgotten.

JSON, of mode 0600; what lies there is believed only if it's ours and says what a record says.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from monarch_nb._client.mesh_name import check_mesh_name
from monarch_nb._wire.directory import private_directories, private_directory
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job.spec import HostRange, HostSpec, PortRange

VERSION = 1
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Plan:
    """The settings of the mesh that is started on the hosts once they're there.

    Attributes:
        dims: dimensions on each host, and their sizes; None: chosen by the hosts' devices.
        idle_timeout_s: seconds without a client after which the mesh ends, also while it waits for its hosts.
        guest: public key of the invitation, by which it can be made void.
    """

    dims: tuple[tuple[str, int], ...] | None = None
    env: tuple[tuple[str, str], ...] = ()
    method: str = "fork"
    on_failure: str = ""
    max_restarts: int = 5
    num_spares: int = 0
    idle_timeout_s: float = 8 * 3600.0
    guest: str = ""


@dataclass(frozen=True)
class Spent:
    """The time of a request's hosts, for their price.

    Attributes:
        host_s: seconds of all hosts up to `counted_at`, added up.
        counted_at: seconds since the epoch; 0: no host was granted yet.
        num_hosts: how many there have been since.
    """

    host_s: float = 0.0
    counted_at: float = 0.0
    num_hosts: int = 0


@dataclass(frozen=True)
class Allocation:
    """The record of a request for hosts to an engine.

    Attributes:
        mesh: name of the mesh.
        profile: name of the profile.
        id: the engine's identifier of the request: a job's number. Empty until it has one.
        parts: the engine's identifier of each host.
        hosts: indices of the places that were reserved in the mesh.
        directory: directory of the launchers' logs, if it is on this machine.
        submitted_at: seconds since the epoch.
        is_up: whether the mesh has started; until then, it waits for its hosts.
        added: later requests, by which the mesh grew.
        controller_id: the engine's identifier of a controller that runs alone, inside; empty: there's none.
        is_unsure: whether the engine was asked and its answer lost: it may have the request.
        spent: the time of its hosts since they were granted.
    """

    mesh: str
    profile: str
    spec: HostSpec
    id: str = ""
    parts: tuple[str, ...] = ()
    hosts: tuple[int, ...] = ()
    directory: str = ""
    submitted_at: float = 0.0
    submitted_by: int = 0
    plan: Plan = Plan()
    is_up: bool = False
    added: tuple[Allocation, ...] = ()
    controller_id: str = ""
    is_unsure: bool = False
    spent: Spent = Spent()

    @property
    def has_answer(self) -> bool:
        """Whether the engine's answer to the request is noted."""
        return bool(self.id or self.parts or self.controller_id)

    @property
    def request_name(self) -> str:
        """The name by which an engine's request is found again; it follows from the record, and no other
        request of any machine has it.
        """
        asked = f"{self.mesh} {self.submitted_at} {self.submitted_by}"
        return f"monarch-nb-{self.mesh}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"

    @property
    def requests(self) -> tuple[Allocation, ...]:
        """All requests to the engine, each separately."""
        return (replace(self, added=()), *self.added)

    @property
    def bearer(self) -> Allocation:
        """The request by which the mesh lives: of its controller, if that runs alone."""
        return replace(self, id="") if self.controller_id else self

    @classmethod
    def new(cls, mesh: str, profile: str, spec: HostSpec, plan: Plan) -> Self:
        """Return the allocation of a new request by this program."""
        return cls(mesh, profile, spec, plan=plan, submitted_at=time.time(), submitted_by=os.getpid())

    def described(self) -> str:
        """Return a short description of the allocation."""
        job = self.id or self.controller_id
        return f"{self.spec.engine}{f' job {job}' if job else ''}" + (
            f" on {self.profile}" if self.profile != self.spec.engine else ""
        )

    def to_json(self) -> str:
        """Return the allocation as a record."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse a record.

        Raises:
            MeshUsageError: if it's none, or of a later version.
        """
        try:
            found = dict(json.loads(text))
            if found.pop("version") != VERSION:
                raise ValueError("it's of another version of monarch_nb")
            return cls._of(found)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise MeshUsageError(f"this is no record of an allocation: {error}") from None

    @classmethod
    def _of(cls, found: dict[str, Any]) -> Self:
        spec, plan = _spec(dict(found.pop("spec"))), _plan(dict(found.pop("plan")))
        parts, hosts = tuple(found.pop("parts")), tuple(found.pop("hosts"))
        added = tuple(cls._of(dict(each)) for each in found.pop("added", ()))
        spent = Spent(**found.pop("spent", {}))
        made = cls(spec=spec, plan=plan, parts=parts, hosts=hosts, added=added, spent=spent, **found)
        return replace(made, mesh=check_mesh_name(found["mesh"]))


def _plan(table: dict[str, Any]) -> Plan:
    dims = table.pop("dims")
    env = tuple((str(k), str(v)) for k, v in table.pop("env"))
    return Plan(None if dims is None else tuple((str(k), int(n)) for k, n in dims), env, **table)


def _spec(table: dict[str, Any]) -> HostSpec:
    for key, kind in (("hosts", HostRange), ("ports", PortRange)):
        if table.get(key) is not None:
            table[key] = kind(**table[key])
    table["own"] = tuple((str(k), str(v)) for k, v in table["own"])
    return HostSpec(**{**table, "machines": tuple(table["machines"]), "setup": tuple(table["setup"])})


# --- the files


_directory = ""


def keep_records_in(directory: str) -> None:
    """Have this program keep its records in a directory of its own."""
    global _directory
    _directory = directory


def records_directory() -> str:
    """Return the directory of this user's records, created if needed."""
    if _directory:
        return _directory
    from jupyter_core.paths import jupyter_data_dir

    path = os.path.join(jupyter_data_dir(), "monarch_nb", "allocations")
    private_directories(path)
    private_directory(path)
    return path


@contextmanager
def lock_records() -> Iterator[None]:
    """Keep other programs of this user from doing meanwhile what they do under this lock."""
    fd = os.open(records_directory(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def record_path(mesh: str) -> str:
    """Return the file of a mesh's record."""
    return os.path.join(records_directory(), f"{check_mesh_name(mesh)}.json")


def write_record(allocation: Allocation, path: str = "") -> None:
    """Write a record atomically."""
    path = path or record_path(allocation.mesh)
    os.replace(_written(allocation, path), path)


def _written(allocation: Allocation, path: str) -> str:
    """Write a record to a file of this thread's own beside `path`; return its path."""
    part = f"{path}.{os.getpid()}.{threading.get_native_id()}.part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(fd, "w") as file:
        file.write(allocation.to_json())
    return part


def add_record(allocation: Allocation) -> bool:
    """Write the record of a new request; return False if there is one for its mesh. A reader finds all of it,
    or nothing.
    """
    path = record_path(allocation.mesh)
    part = _written(allocation, path)
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(part)
    return True


def read_record(mesh: str) -> Allocation | None:
    """Return a mesh's record; None if there's none."""
    return read_record_at(record_path(mesh))


def read_record_at(path: str) -> Allocation | None:
    """Return the record in a file; None if it isn't there.

    Raises:
        MeshUsageError: if what is there is no record of ours.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(path, str(error.strerror)) from None
    with open(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_size > _MAX_BYTES:
            raise _damaged(path, "it is no file of this user, or too large")
        try:
            return Allocation.from_json(file.read(_MAX_BYTES))
        except MeshUsageError as error:
            raise _damaged(path, str(error)) from None


def _damaged(path: str, why: str) -> MeshUsageError:
    return MeshUsageError(
        f"{path} is no record of requested hosts ({why}). They may go on: look for them by the commands of "
        f"their engine, and end them there; then rm {path}"
    )


def remove_record(mesh: str) -> None:
    """Remove the record of an allocation that has ended."""
    with suppress(FileNotFoundError):
        os.unlink(record_path(mesh))


def remove_if_same(allocation: Allocation) -> None:
    """Remove a record that says what it said when it was read."""
    if read_record(allocation.mesh) == allocation:
        remove_record(allocation.mesh)


def list_records() -> list[Allocation]:
    """Return this user's allocations that aren't known to have ended, as far as their records can be read."""
    return _all_records()[0]


def damaged_records() -> list[str]:
    """Return what is said of each file that should be a record and isn't."""
    return _all_records()[1]


def _all_records() -> tuple[list[Allocation], list[str]]:
    found: list[Allocation] = []
    damaged: list[str] = []
    directory = records_directory()
    for name in sorted(os.listdir(directory)):
        if name.endswith(".json"):
            try:
                record = read_record_at(os.path.join(directory, name))
            except MeshUsageError as error:
                damaged.append(str(error))
            else:
                found += [record] if record is not None else []
    return found, damaged
