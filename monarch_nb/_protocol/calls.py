"""The names of calls that processes make of each other internally: all other names are the user's endpoints.

These are calls and no requests, because they bring values of the user's, or wait for their turn in an actor's
inbox.
"""

from __future__ import annotations

from typing import Final

# calls to a process

SPAWN: Final = b"__spawn__"
"""Make an actor."""
RESPAWN: Final = b"__respawn__"
"""Create a lost actor again."""
SNAPSHOT: Final = b"__snapshot__"
"""Answer with a member's state, for another one that has none."""
DATA_PLANE: Final = b"__rdma__"
"""A question of one data plane to another."""
DEBUG: Final = b"__debug__"
"""A line for a thread that stands in the debugger."""
OPEN_RENDEZVOUS: Final = b"__open_rendezvous__"
"""Start a store where ranks can meet."""

# calls to an actor; SUPERVISE also to a process that owns some

SUPERVISE: Final = b"__supervise__"
"""Handle a failure of an actor or process that the receiver owns."""
SAVE: Final = b"__save__"
"""Save a checkpoint."""
ABORT: Final = b"__abort__"
"""Fail, as the actor itself has asked."""
