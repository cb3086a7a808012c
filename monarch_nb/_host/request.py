"""The error of a request that a host process can't do."""

from __future__ import annotations


class RequestError(Exception):
    """A request that can't be done; the text goes to whoever asked."""
