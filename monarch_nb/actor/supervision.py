"""What is known about a failure that nobody waited for, and what is done about it at the root.

In a client, a failure never interrupts the program: the mesh is marked, the next use of it raises, and `unhandled_fault_hook` is called with
the failure; the default writes it to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monarch_nb._post.failure import revive
from monarch_nb.exceptions import RankFailure, SupervisionError


class MeshFailure(SupervisionError):
    """Something of a mesh has failed.

    Attributes:
        mesh: name of the actor or proc mesh.
        failures: what happened, on which ranks.
        stopped: whether it was stopped on purpose.
    """

    def __init__(
        self, mesh: str = "", message: str = "", failures: Sequence[RankFailure] = (), stopped: bool = False
    ) -> None:
        super().__init__(message, failures)
        self.mesh = mesh
        self.stopped = stopped

    @classmethod
    def from_failure(cls, failure: Mapping[str, Any]) -> MeshFailure:
        """Return the failure that a rank has described."""
        rank = failure.get("rank", 0)
        found = RankFailure(
            ranks=(rank if isinstance(rank, int) else 0,),
            type=failure["type"],
            message=failure["message"],
            traceback=failure["traceback"],
            exception=revive(dict(failure)),
            when=failure.get("when", 0.0),
            first=True,
            details={k: failure[k] for k in ("host", "pid", "actor", "endpoint") if k in failure},
        )
        actor = str(failure.get("actor", ""))
        where = f"{actor}.{failure.get('endpoint', '')}"
        return cls(actor, f"{where} raised {found.type}: {found.message}", [found])

    def report(self) -> str:
        """Return all that is known, as text."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return MeshFailure, (self.mesh, self.message, self.failures, self.stopped)


def _write_to_stderr(failure: MeshFailure) -> None:
    print(f"unhandled failure in mesh {failure.mesh!r}:\n{failure.report()}", file=sys.stderr, flush=True)


_hook: Callable[[MeshFailure], Any] = _write_to_stderr


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """What is called with a failure that no owner handled. Replace it by assigning `monarch_nb.actor.unhandled_fault_hook`."""
    _write_to_stderr(failure)


def call_fault_hook(failure: MeshFailure) -> None:
    """Call the hook in force."""
    import monarch_nb.actor

    monarch_nb.actor.unhandled_fault_hook(failure)
