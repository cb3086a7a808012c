"""Reads and checks the bodies of requests: each reader says in a sentence what was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from monarch_nb._client.launch import connection_path
from monarch_nb._server.messages import (
    Job,
    ProcessGroup,
    StartRequest,
    WatchAllocations,
    WatchDebug,
    WatchLogs,
    WatchMeshes,
    WatchRequest,
    WatchStatus,
)
from monarch_nb._units import parse_duration

Body = Mapping[str, Any]
"""A JSON body, which may contain anything."""
JOBS: tuple[Job, ...] = get_args(Job)
PROCESS_GROUPS: tuple[ProcessGroup, ...] = get_args(ProcessGroup)
MAX_SIZE = 4096
_HOSTS = re.compile(r"[1-9][0-9]{0,5}(\.\.[1-9][0-9]{0,5})?|[A-Za-z].*")


class BadBody(ValueError):
    """The error of a request that can't be understood; its text goes to the client."""


def read_start(body: Body) -> StartRequest:
    """Return the settings of a mesh to start.

    Raises:
        BadBody: if a field is invalid; the error names it, what was expected and what was received.

    Example:
        >>> read_start({"name": "demo", "dims": [["gpus", 4]]}).dims
        (('gpus', 4),)
    """
    fields = StartRequest.__struct_fields__
    unknown = set(body) - set(fields)
    if unknown:
        raise BadBody(f"unknown field {', '.join(sorted(map(repr, unknown)))}; known: {', '.join(fields)}")
    name = read_text(body, "name", "mesh")
    try:
        connection_path(name)
    except ValueError as error:
        raise BadBody(str(error)) from None
    num_hosts = body.get("num_hosts", 0)
    if not _is_count(num_hosts, least=0):
        raise BadBody(f"num_hosts must be a number from 0 to {MAX_SIZE}, not {num_hosts!r}")
    asked = read_text(body, "job", "process" if num_hosts else "local")
    job = next((each for each in JOBS if each == asked), None)
    if job is None:
        raise BadBody(f"job must be one of {', '.join(JOBS)}, not {asked!r}")
    idle_timeout = read_text(body, "idle_timeout", "8h")
    try:
        parse_duration(idle_timeout)
    except ValueError as error:
        raise BadBody(f"idle_timeout: {error}") from None
    process_group = body.get("process_group", "")
    if process_group not in PROCESS_GROUPS:
        raise BadBody(
            f"process_group must be one of {', '.join(PROCESS_GROUPS[1:])}, or empty, not {process_group!r}"
        )
    dims = tuple(read_sizes(body.get("dims", []), "dims").items())
    request = StartRequest(name, dims, num_hosts, job, idle_timeout, process_group)
    return _read_hosts(body, request)


def _read_hosts(body: Body, request: StartRequest) -> StartRequest:
    """Return a request with what is said of hosts of an engine.

    Raises:
        BadBody: for a field that can't be, or that is for hosts of an engine and names none.
    """
    on = _read_word(body, "on")
    hosts, time = _read_word(body, "hosts"), _read_word(body, "time")
    gpus = body.get("gpus", 0)
    if not _is_count(gpus, least=0):
        raise BadBody(f"gpus must be a number from 0 to {MAX_SIZE}, not {gpus!r}")
    given = [name for name, value in (("hosts", hosts), ("gpus", gpus), ("time", time)) if value]
    if given and not on:
        raise BadBody(f"{given[0]} is for hosts of an engine: say which one by on, as in lab")
    if on and (request.num_hosts or request.job != "local"):
        raise BadBody("num_hosts and job are for this machine, and on is for others; give one of them")
    if hosts and not _HOSTS.fullmatch(hosts):
        raise BadBody(f"hosts must be N, LEAST..MOST or names, as in 4, 2..8 or node[1-4]; not {hosts!r}")
    try:
        parse_duration(time or "1h")
    except ValueError as error:
        raise BadBody(f"time: {error}") from None
    return msgspec.structs.replace(request, on=on, hosts=hosts, gpus=gpus, time=time)


def _read_word(body: Body, field: str) -> str:
    """Return a text without blanks that doesn't look like a flag; empty if there's none.

    Raises:
        BadBody: if it's something else.
    """
    value = body.get(field, "")
    if not isinstance(value, str) or not re.fullmatch(r"(?!-)\S{0,4096}", value):
        raise BadBody(f"{field} must be one word of text, not {value!r}")
    return value


def read_watch(number: int, body: Body) -> WatchRequest:
    """Return the watch that a page requests, with the number that the page has assigned to it.

    Raises:
        ValueError: if the request is invalid.
    """
    what, mesh = body.get("what"), body.get("mesh")
    if what == "meshes":
        return WatchMeshes(id=number)
    if what == "allocations":
        return WatchAllocations(id=number)
    if what not in ("status", "debug", "logs") or not isinstance(mesh, str):
        raise ValueError(
            "what must be meshes or allocations, or status, debug or logs with a mesh; not "
            f"{what!r} with {mesh!r}"
        )
    if what == "debug":
        return WatchDebug(id=number, mesh=mesh)
    if what == "status":
        return WatchStatus(id=number, mesh=mesh)
    after, ranks, grep = body.get("after"), body.get("ranks", "all"), body.get("grep", "")
    if (
        not (after is None or isinstance(after, int))
        or not isinstance(ranks, str)
        or not isinstance(grep, str)
    ):
        raise ValueError("logs are watched with ranks and grep, both text, and after, a position or null")
    return WatchLogs(id=number, mesh=mesh, ranks=ranks, grep=grep, after=after)


def read_resize(body: Body) -> dict[str, int]:
    """Return the new sizes by dimension.

    Raises:
        BadBody: if there are no sizes.
    """
    sizes = read_sizes(body.get("sizes"), "sizes")
    if not sizes:
        raise BadBody('sizes must name at least one dimension, as in [["gpus", 4]]')
    return sizes


def read_sizes(value: Any, field: str) -> dict[str, int]:
    """Return dimensions and their sizes, outermost first.

    Raises:
        BadBody: if it isn't a list of [name, size].
    """
    found: dict[str, int] = {}
    pairs = value if isinstance(value, list) else [None]
    for pair in pairs:
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and pair[0].isidentifier()
            and _is_count(pair[1])
        ):
            raise BadBody(
                f'{field} must be a list of names and sizes (1 to {MAX_SIZE}), as in [["hosts", 2], '
                f'["gpus", 4]]; not {value!r}'
            )
        if pair[0] in found:
            raise BadBody(f"{field} must name each dimension once; {pair[0]!r} is there twice")
        found[pair[0]] = pair[1]
    return found


def read_text(body: Body, field: str, default: str, *, empty_is_default: bool = False) -> str:
    """Return a text field of a request.

    Raises:
        BadBody: if it isn't.
    """
    value = body.get(field, default)
    if value == "" and empty_is_default:
        return default
    if not isinstance(value, str) or not value:
        raise BadBody(f"{field} must be text, not {value!r}")
    return value


def number(name: str, text: str) -> int | None:
    """Return a query argument as a number of at most 18 digits; None if it's empty.

    Raises:
        BadBody: if it isn't such a number.
    """
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,18}", text):
        raise BadBody(f"{name} must be a number of at most 18 digits, not {text[:40]!r}")
    return int(text)


def _is_count(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_SIZE
