"""Why a request to a host process can't be done."""

from __future__ import annotations


class RequestError(Exception):
    """A request that can't be done; the text goes to whoever asked."""
