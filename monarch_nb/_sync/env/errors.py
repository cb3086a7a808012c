"""Errors of environments."""

from __future__ import annotations

from monarch_nb.exceptions import MeshError


class EnvironmentSyncError(MeshError):
    """An environment can't be read, sent or placed; the text says why, and what to type."""
