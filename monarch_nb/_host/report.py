"""What a heal or a resize has done, as it goes to whoever asked."""

from __future__ import annotations

from typing import Any

Report = dict[str, Any]
"""ranks, hosts, actors (ranks by name), actor_ids, said, problems, seconds."""


def empty_report() -> Report:
    """Return the report of a heal that had nothing to do."""
    return {"ranks": [], "hosts": [], "actors": {}, "actor_ids": [], "said": [], "problems": [], "seconds": 0.0}
