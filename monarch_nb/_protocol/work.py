"""The kinds of work of a rank's main thread. Arguments and answers are the user's values, or contain such:
encoded by the sender, and opaque on the way. `@handles` marks the method that does a kind.
"""

from __future__ import annotations

from enum import StrEnum


class Work(StrEnum):
    """The kind of a piece of work; its value is the name on the wire."""

    RUN = "run"
    """A cell, or a script."""
    EXECUTE = "execute"
    """A function."""
    BIND = "bind"
    CELL_VALUE = "cell_value"
    PROFILE = "profile"
    ENVIRONMENT = "environment"
    SET_ENVIRONMENT = "set_environment"
    POST_MORTEM = "post_mortem"
    START_RENDEZVOUS = "start_rendezvous"
    REMAKE_GROUP = "remake_group"
    PUSH = "push"
    PULL = "pull"
    VARS = "vars"
    LEAF_DIGESTS = "leaf_digests"
    LEAF_AT = "leaf_at"
    LOOK_AT = "look_at"
    COMPLETE = "complete"
    ACTORS = "actors"
    ACTOR = "actor"
    RELOAD = "reload"
    RELOAD_CLASS = "reload_class"

    @property
    def wire_name(self) -> str:
        """Return the name that stands in the message's header."""
        return self.value
