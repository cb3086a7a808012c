"""Errors of environments."""

from __future__ import annotations

from monarch_nb.exceptions import MeshError


class EnvironmentSyncError(MeshError):
    """The error of an environment that can't be read, sent or placed; its text gives the reason and a command
    to type.
    """
