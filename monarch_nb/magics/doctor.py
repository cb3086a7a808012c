"""The verb about what moves bytes: doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_nb.magics.arguments import Namespace
from monarch_nb.magics.state import State

if TYPE_CHECKING:
    from monarch_nb.rdma.doctor import Report


def doctor(state: State, arguments: Namespace) -> Report:
    """Say what ranks have for moving bytes (RDMA, GPUs, shared memory, network), what each path between
    them gives, and what to change.
    """
    return state.mesh(arguments.name).doctor(
        arguments.ranks, size_bytes=arguments.size, measures=not arguments.quick, all_paths=arguments.all
    )
