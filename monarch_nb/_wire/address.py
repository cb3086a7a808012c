"""Process ids: one 64-bit number identifies a process of a mesh and its host.

The upper half is the index of the host, the lower half the process on that host; 0 is the host process
itself, so proc 0 is the controller. A process binds `DIRECTORY/p<lower half>` of its machine, hence a handle
that carries the number needs no address book. Ids of ranks are given out by the controller; a client draws
its own (the top bit of the lower half set), which spares it a round trip.
"""

from __future__ import annotations

import secrets

CONTROLLER = 0
"""Proc id of the controller."""

FIRST_MEMBER = 1 << 30
"""Indices from here on are those of members: programs of other users count as hosts that no rank is on."""

_CLIENT_BIT = 1 << 31
_LOCAL_MASK = (1 << 32) - 1


def proc_id(host: int, local: int) -> int:
    """Return the id of process `local` on host `host`."""
    return host << 32 | local


def host_of(proc: int) -> int:
    """Return the index of the host on which `proc` lives."""
    return proc >> 32


def local_of(proc: int) -> int:
    """Return the part of a proc id that is unique on its host; 0 is the host process."""
    return proc & _LOCAL_MASK


def host_proc(host: int) -> int:
    """Return the proc id of the host process of `host`."""
    return host << 32


def new_client_id(host: int = 0) -> int:
    """Draw the proc id of a new client on `host`."""
    return proc_id(host, _CLIENT_BIT | secrets.randbits(31))


def is_client(proc: int) -> bool:
    """Return whether `proc` is a client: a program that uses the mesh and isn't part of it."""
    return bool(proc & _CLIENT_BIT)


def socket_path(directory: str, proc: int) -> str:
    """Return the path of the unix socket that `proc` binds in its machine's `directory`."""
    return f"{directory}/p{local_of(proc):x}"


def page_path(directory: str, proc: int) -> str:
    """Return the path of the page on which the rank `proc` says what it does."""
    return f"{directory}/v{local_of(proc):x}"


def dump_path(directory: str, proc: int) -> str:
    """Return the path of the file to which the rank `proc` writes its stacks when it's sent a signal."""
    return f"{directory}/d{local_of(proc):x}"


def last_words_path(directory: str, proc: int) -> str:
    """Return the path of the file in which the rank `proc` has said why it ended by itself."""
    return f"{directory}/e{local_of(proc):x}"


def notice_path(directory: str) -> str:
    """Return the path of the file that is there once the host process was told to end."""
    return f"{directory}/told"


def stop_path(directory: str, proc: int) -> str:
    """Return the path of the file that is there once the host process has told the rank `proc` to end."""
    return f"{directory}/x{local_of(proc):x}"
