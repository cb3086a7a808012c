"""Describes failures that no caller waited for, and calls the hook for those that reach the root.

In a client, a failure never interrupts the program: the mesh is marked, the next use of it raises, and
`unhandled_fault_hook` is called with the failure; the default writes it to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.failure import Failure
from monarch_nb._runtime.described import rank_failures, rank_of
from monarch_nb._shape import name_ranks
from monarch_nb.exceptions import RankFailure, SupervisionError, describe_end, fold_alike


class MeshFailure(SupervisionError):
    """A failure in a mesh, of an actor or of a whole process, as `__supervise__` receives it.

    Attributes:
        mesh: name of the actor or proc mesh.
        failures: the failures, with their ranks.
        stopped: whether it was stopped on purpose.
    """

    def __init__(
        self, mesh: str = "", message: str = "", failures: Sequence[RankFailure] = (), stopped: bool = False
    ) -> None:
        super().__init__(message, failures)
        self.mesh = mesh
        self.stopped = stopped

    @classmethod
    def from_failure(cls, failure: Failure) -> MeshFailure:
        """Return the failure that a rank has described."""
        return cls.from_failures([failure])

    @classmethod
    def from_failures(cls, failures: Sequence[Failure]) -> MeshFailure:
        """Return the failure of one actor mesh, from the failures that ranks have described, in the order of
        time.
        """
        found = rank_failures([(rank_of(0, failure), failure) for failure in failures])
        found[0] = replace(found[0], first=True)
        actor = failures[0].actor
        return cls(actor, "; ".join(_in_a_line(actor, each) for each in fold_alike(found)), found)

    @classmethod
    def from_ends(cls, ends: Sequence[RankExit]) -> MeshFailure:
        """Return the failure for the ends of some processes of one mesh."""
        found = [
            RankFailure(
                ranks=(end.rank,), type="lost", message=describe_end(end), end=end.plain(),
                details={"host": end.host, "pid": end.pid},
            )
            for end in ends
        ]  # fmt: skip
        group = ends[0].group
        ranks = [end.rank for end in ends]
        return cls(
            group.rpartition("-")[0] or group,
            f"{name_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} lost",
            found,
        )

    def _known(self, key: str) -> Any:
        for failure in self.failures:
            for source in (failure.end, failure.details):
                if source is not None and source.get(key) is not None:
                    return source[key]
        return None

    @property
    def points(self) -> tuple[Mapping[str, int], ...]:
        """Coordinates of the ranks that died, where known."""
        return tuple(f.end["point"] for f in self.failures if f.end is not None and f.end.get("point"))

    @property
    def host(self) -> str:
        """Host name of the first failure."""
        return str(self._known("host") or "")

    @property
    def pid(self) -> int:
        """Process id of the first failure."""
        return int(self._known("pid") or 0)

    @property
    def signal(self) -> int | None:
        """Number of the signal that killed the process, if one did."""
        found = self._known("signal")
        return None if found is None else int(found)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process, if it has exited by itself."""
        found = self._known("exit_code")
        return None if found is None else int(found)

    @property
    def cause(self) -> BaseException | None:
        """The exception that was raised, if it could travel."""
        return self.exception

    @property
    def last_lines(self) -> str:
        """The last lines that the process has printed."""
        return str(self._known("last_lines") or "")

    def report(self) -> str:
        """Return the whole failure as text: what, where, how, the last output, and what to do."""
        lines = [str(self)]
        points = [", ".join(f"{k}={v}" for k, v in point.items()) for point in self.points]
        lines += [f"at {'; '.join(points)}"] if points else []
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return MeshFailure, (self.mesh, self.message, self.failures, self.stopped)


def _in_a_line(actor: str, failure: RankFailure) -> str:
    """Return an actor's failure in one line."""
    ranks = name_ranks(failure.ranks)
    if failure.end is not None:
        return f"actor {actor!r} is lost on {ranks}"
    what = failure.type + (f": {failure.message.splitlines()[0]}" if failure.message else "")
    endpoint = failure.details.get("endpoint", "")
    if failure.type == "ActorAborted" and not endpoint:
        return f"actor {actor!r} has aborted itself on {ranks}: {failure.message}"
    if endpoint == "__init__":
        return f"actor {actor!r} was not constructed on {ranks}: {what}"
    return f"{actor}.{endpoint} raised {what}" + (f" on {ranks}" if len(failure.ranks) > 1 else "")


def _write_to_stderr(failure: MeshFailure) -> None:
    print(f"unhandled failure in mesh {failure.mesh!r}:\n{failure.report()}", file=sys.stderr, flush=True)


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """Write a failure that no owner handled to stderr. Replace this by assigning
    `monarch_nb.actor.unhandled_fault_hook`.
    """
    _write_to_stderr(failure)


FaultHook = Callable[[MeshFailure], None]


def _default_hook() -> FaultHook:
    return unhandled_fault_hook


_find_hook = _default_hook


def find_fault_hook_by(find: Callable[[], FaultHook]) -> None:
    """Set the function that finds the present hook: an attribute of `monarch_nb.actor`, which programs
    assign.
    """
    global _find_hook
    _find_hook = find


def has_own_hook() -> bool:
    """Return whether the program has put a hook of its own in place."""
    return _find_hook() is not unhandled_fault_hook


def call_fault_hook(failure: MeshFailure) -> None:
    """Call the hook in force."""
    _find_hook()(failure)
