"""Verbs about hosts of engines: clusters, queue, cancel."""

from __future__ import annotations

from monarch_nb._commands.clusters import cancelled, clusters_text, queue_text
from monarch_nb._commands.parser import Namespace
from monarch_nb._magics.state import State


def clusters(_state: State, _arguments: Namespace) -> None:
    """List profiles and engines."""
    print(clusters_text())


def queue(_state: State, _arguments: Namespace) -> None:
    """List the requests to engines."""
    print(queue_text())


def cancel(state: State, arguments: Namespace) -> None:
    """Release the hosts of a mesh."""
    print(cancelled(arguments.name, forgets=arguments.forget))
    state.drop(arguments.name)
