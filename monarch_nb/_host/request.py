"""The error of a request that a host process can't carry out."""

from __future__ import annotations


class RequestError(Exception):
    """The error of a request that can't be carried out; its text is sent to the client that asked."""
