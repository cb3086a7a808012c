"""A rank's place in the environment variables that torchrun sets."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = {
    "RANK": "rank",
    "WORLD_SIZE": "world_size",
    "LOCAL_RANK": "local_rank",
    "LOCAL_WORLD_SIZE": "local_world_size",
    "ROLE_RANK": "rank",
    "ROLE_WORLD_SIZE": "world_size",
}


def elastic_numbers(place: Mapping[str, int]) -> dict[str, str]:
    """Return RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and the same by role.

    >>> elastic_numbers({"rank": 5, "world_size": 8, "local_rank": 1, "local_world_size": 4})["LOCAL_RANK"]
    '1'
    """
    return {name: str(place[key]) for name, key in _NAMES.items()}
