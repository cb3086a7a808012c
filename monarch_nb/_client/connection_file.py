"""Connection files: how the programs of a user find the controllers of named meshes.

They lie in Jupyter's runtime directory, where anybody may have put anything. So a file is believed only if
it's a plain one of ours, of bounded size, that says what such a file says; what else lies there is left
alone. A controller is named by its pid and the time when it started: a pid alone may be an innocent process'.
The controller writes its file, and holds a claim (`_wire/claim`) as long as it lives; the file of a dead one
is removed by whoever gets the claim.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from typing import NamedTuple

from monarch_nb._protocol.claims import ClaimNote, ConnectionNote
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.claim import Claim, holder
from monarch_nb._wire.process import is_running, machine_id

PREFIX, SUFFIX = "monarch_nb-", ".json"
PROGRAM_PREFIX = "monarch_nb.program-"
"""Prefix of names of programs whose own mesh can be debugged: their pid follows."""
_MAX_BYTES = 1 << 16
_PEER = struct.Struct("3i")


class Connection(NamedTuple):
    """The content of a controller's connection file: what a program needs to reach the controller.

    Attributes:
        start_time: when the process started, in ticks since boot; None if a process of its version doesn't
            record that.
        trouble: why the controller can't be reached, though it runs.
        host: host index that programs have there; 0: they are on the controller's machine. Otherwise `pid` is
            the relay's.
        via: the machine by which a mesh of this user is reached; empty: another one.
    """

    name: str
    pid: int
    directory: str
    path: str = ""
    wire_version: int = wire.VERSION
    start_time: int | None = None
    trouble: str = ""
    host: int = 0
    via: str = ""


def read(path: str) -> Connection | None:
    """Return the mesh that a connection file names, if it runs on this machine; the file of one that has
    ended is removed.
    """
    content = _content(path)
    if content is None or content.machine not in ("", machine_id()):
        return None  # on a shared file system: only that machine knows whether the process runs
    if not _lives(content):
        _remove(path)
        return None
    name, pid, directory = content.name, content.pid, content.directory
    trouble = ""
    if not os.path.exists(address.socket_path(directory, address.CONTROLLER)):
        trouble = (
            f"mesh {name!r} runs, but its sockets in {directory} are gone: nobody can reach it; end it: "
            f"kill {pid}"
        )
    return Connection(
        name, pid, directory, path, content.wire_version, content.start_time, trouble, content.host,
        content.via,
    )  # fmt: skip


def write_program(directory: str, pid: int, connection: Connection) -> str:
    """Write the connection file by which a program's own mesh is found under its pid; return the file's
    path.
    """
    path = os.path.join(directory, f"{PROGRAM_PREFIX}{pid}{SUFFIX}")
    content = ConnectionNote(
        str(pid), connection.pid, connection.directory, connection.start_time, machine_id(),
        wire_version=wire.VERSION,
    )  # fmt: skip
    with suppress(FileNotFoundError):
        os.unlink(path)  # written by an earlier program with this pid
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:
        file.write(content.as_json())
    return path


def list_programs(directory: str) -> list[Connection]:
    """Return the programs of this user whose own meshes can be debugged; remove the files of ended ones."""
    found = []
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        content = _content(path) if name.startswith(PROGRAM_PREFIX) and name.endswith(SUFFIX) else None
        if content is None or content.machine not in ("", machine_id()):
            continue
        if not _lives(content):
            with suppress(OSError):
                os.unlink(path)
        elif content.wire_version == wire.VERSION:
            connection = Connection(
                content.name, content.pid, content.directory, path, start_time=content.start_time
            )
            found.append(connection)
    return found


def claimant(path: str) -> ClaimNote | None:
    """Return the note of the controller that holds a connection file's name; None if the name is free."""
    note = holder(claim_path(path))
    return None if note is None else ClaimNote.read(note)


def claim_path(path: str) -> str:
    """Return the file whose lock is the right to a connection file."""
    return path.removesuffix(SUFFIX) + ".claim"


def _content(path: str) -> ConnectionNote | None:
    """Return the content of a connection file, or None if the file isn't valid. It neither waits nor fails,
    whatever is at that path.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_size > _MAX_BYTES:
            return None
        found = ConnectionNote.of_json(os.pread(fd, _MAX_BYTES, 0))
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    return found if _is_sound(found, path) else None


def _is_sound(content: ConnectionNote, path: str) -> bool:
    """Return whether a connection file is valid: it has its mesh's name, and names a process."""
    right_name = os.path.basename(path) in (
        f"{prefix}{content.name}{SUFFIX}" for prefix in (PREFIX, PROGRAM_PREFIX)
    )
    is_host = 0 <= content.host < 1 << 31
    return right_name and is_host and content.pid > 1 and os.path.isabs(content.directory)


def _lives(content: ConnectionNote) -> bool:
    if content.start_time is not None:
        return is_running(content.pid, content.start_time)
    # A controller of an older version, which recorded no start time: it's the one that listens at its socket.
    return is_running(content.pid, None) and _listener(content.directory) == content.pid


def _listener(directory: str) -> int | None:
    """Return the pid of the process that listens at a controller's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address.socket_path(directory, address.CONTROLLER))
            peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except (OSError, ValueError):
            return None
    return int(_PEER.unpack(peer)[0])


def _remove(path: str) -> None:
    """Remove the file of a mesh that has ended, unless another process holds the name by now."""
    with suppress(OSError):
        claim = Claim.acquire(claim_path(path))
        if claim is None:
            return
        try:
            content = _content(path)
            if content is not None and not _lives(content):
                os.unlink(path)
        finally:
            claim.release()
