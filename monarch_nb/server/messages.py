"""What the server says over the WebSocket, as types: `labextension/src/state.ts` is generated from them.

Each has a tag, its `type`. All but the first belong to a watch: `id` is that of whoever watches, who answers
with {op: "taken", id}.
"""

from __future__ import annotations

import msgspec

from monarch_nb._protocol.debugging import Stop
from monarch_nb._protocol.logs import LogLine
from monarch_nb.status import HostStatus, MeshStatus, MeshSummary, RankStatus
from monarch_nb.status.delta import HeadChange


class _Message(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """Something that the server says."""


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """The first message of a connection."""

    version: str
    protocol: int


class WatchMessage(_Message, frozen=True, kw_only=True):
    """Something new of what is watched."""

    id: int = 0


class Meshes(WatchMessage, frozen=True, kw_only=True, tag="meshes"):
    """All meshes, whenever that changes."""

    meshes: list[MeshSummary]


class Status(WatchMessage, frozen=True, kw_only=True, tag="status"):
    """A mesh's state."""

    status: MeshStatus


class Delta(WatchMessage, frozen=True, kw_only=True, tag="delta"):
    """What has changed in a mesh's state."""

    mesh: HeadChange
    hosts: tuple[HostStatus, ...]
    ranks: tuple[RankStatus, ...]


class Stops(WatchMessage, frozen=True, kw_only=True, tag="debug"):
    """All who stand in the debugger, whenever that changes."""

    stops: list[Stop]


class Log(WatchMessage, frozen=True, kw_only=True, tag="log"):
    """Lines that have come, and where they end."""

    lines: list[LogLine]
    after: int


class Gone(WatchMessage, frozen=True, kw_only=True, tag="gone"):
    """What was watched is no more: the mesh has ended. The watch is over."""

    reason: str


class Failed(WatchMessage, frozen=True, kw_only=True, tag="error"):
    """The watch couldn't begin; it's over."""

    message: str


ServerMessage = Hello | Meshes | Status | Delta | Stops | Log | Gone | Failed
