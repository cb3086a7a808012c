"""Every error of this package.

    MeshError
     ├── DeviceMeshError        what was done on a mesh has failed: what a recovery loop catches
     │    ├── ActorError        an endpoint, function or cell raised, on some ranks
     │    └── SupervisionError  something used is dead: a rank, an actor, a mesh
     │         └── MeshFailure  what happened to it, as a value and as an exception
     ├── RankTimeout            (TimeoutError) an answer didn't come in time; the mesh is unharmed
     ├── HealError              not all that was lost could be put back
     ├── MeshStartError         a host process or rank didn't start
     ├── MeshNotFound           (LookupError) no mesh of that name
     ├── MeshUsageError         (ValueError) a magic that was typed wrongly, a cell that isn't Python, an argument that can't be
     ├── RDMAError              bytes could not be moved; the memory they were for may have part of them
     │    ├── BufferGone        the buffer was dropped, or its owner has ended or is another process by now
     │    ├── PathFailed        the path broke while it was used: says how, and the likely cause
     │    └── TransferTimeout   (TimeoutError) it took longer than it may
     └── CannotPickle           (TypeError) a value that can't be sent; defined in `_wire.codec`

Ranks in messages are positions in the mesh (or slice) that was called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch_nb._shape.rank_set import RankSetError, name_ranks
from monarch_nb._wire.codec import CannotPickle

__all__ = [
    "ActorError",
    "BufferGone",
    "CannotPickle",
    "DeviceMeshError",
    "HealError",
    "MeshError",
    "MeshNotFound",
    "MeshStartError",
    "MeshUsageError",
    "PathFailed",
    "RDMAError",
    "RankFailure",
    "RankSetError",
    "RankTimeout",
    "SupervisionError",
    "TransferTimeout",
]


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _place(filename: str) -> str:
    """Return a file as people know it: cells have a made-up name."""
    return "a cell of this notebook" if "ipykernel_" in filename or filename.startswith("<") else filename


def _rendered(error: BaseException) -> list[str]:
    """Return what a notebook shows: what happened, and the reader's own lines that led there."""
    import traceback

    frames = [
        f"  {_place(f.filename)}, line {f.lineno}, in {f.name}\n    {f.line}"
        for f in traceback.extract_tb(error.__traceback__)
        if _PACKAGE not in f.filename and f"{os.sep}IPython{os.sep}" not in f.filename
    ]
    return "\n".join([f"{type(error).__name__}: {error}", *(["called from:"] if frames else []), *frames]).split("\n")


class MeshError(Exception):
    """Base of all errors of a mesh. A notebook shows them without frames of this package: they'd tell the reader nothing."""

    def _render_traceback_(self) -> list[str]:
        return _rendered(self)


class MeshStartError(MeshError, RuntimeError):
    """A host process or a rank didn't start."""


class HealError(MeshError):
    """Not all that was lost could be put back.

    Attributes:
        report: what was put back, and the problems.
    """

    def __init__(self, report: Any) -> None:
        super().__init__("\n".join(["healing was not complete:", *report.problems]))
        self.report = report


class MeshNotFound(MeshError, LookupError):
    """There's no mesh of that name."""


class MeshUsageError(MeshError, ValueError):
    """Something that was typed wrongly; nothing has been sent."""


class RDMAError(MeshError):
    """Bytes could not be moved. The memory that they were for may have part of them."""


class BufferGone(RDMAError):
    """A buffer was dropped, or its owner has ended, or is another process by now. Ask the owner for a new handle."""


class PathFailed(RDMAError):
    """The path broke while it was used; the message says how, and the likely cause."""


class TransferTimeout(RDMAError, TimeoutError):
    """A transfer took longer than it may. What was written so far stays."""


class RankTimeout(MeshError, TimeoutError):
    """An answer didn't come in time. The work goes on, and the same future can be waited for again."""


@dataclass(frozen=True)
class RankFailure:
    """One distinct failure, and the ranks it happened on.

    Attributes:
        ranks: positions in the mesh that was called.
        type: name of the exception's class; "lost" if the process died.
        message: the exception's text, or how the process died.
        traceback: the remote traceback, user frames only.
        exception: the original exception, if it could travel.
        when: time of the first of them, seconds since the epoch.
        first: whether it was the first failure in time.
        end: how the process ended (host, pid, signal, exit_code, last_lines), if it did.
    """

    ranks: tuple[int, ...]
    type: str
    message: str
    traceback: str = ""
    exception: BaseException | None = None
    when: float = 0.0
    first: bool = False
    end: Mapping[str, Any] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def headline(self) -> str:
        """Return one line: ranks, type, message."""
        mark = " (first)" if self.first else ""
        return f"{name_ranks(self.ranks)}{mark}: {self.type}: {self.message}"

    def __str__(self) -> str:
        return "\n".join(part for part in (self.headline(), self.traceback.rstrip()) if part)


class DeviceMeshError(MeshError):
    """What was done on a mesh has failed on some ranks: they have raised, or are dead. What a recovery loop catches.

    Attributes:
        failures: each distinct failure with its ranks, first in time first.
        results: the values of the ranks that succeeded, by rank.
        num_unfinished: how many ranks had not finished.

    Example:
        >>> try:                                         # doctest: +SKIP
        ...     trainer.step.call(batch).get()
        ... except DeviceMeshError:
        ...     mesh = monarch_nb.heal_mesh(mesh)
    """

    def __init__(
        self,
        message: str,
        failures: Sequence[RankFailure] = (),
        results: Mapping[int, Any] | None = None,
        num_unfinished: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.failures = tuple(failures)
        self.results = dict(results or {})
        self.num_unfinished = num_unfinished

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that failed."""
        return tuple(sorted(r for f in self.failures for r in f.ranks))

    @property
    def exception(self) -> BaseException | None:
        """The original exception that was first in time, if it could travel."""
        return next((f.exception for f in self.failures if f.first or len(self.failures) == 1), None)

    def advice(self) -> str:
        """Return what is done, or can be done, about ranks that are lost; empty if none is."""
        ends = [f.end for f in self.failures if f.end is not None and not f.end.get("stopped")]
        if not ends:
            return ""
        by_itself = {"heal": "healing begins by itself", "shrink": "the mesh will go on without it"}
        many = sum(len(f.ranks) for f in self.failures if f.end in ends) > 1
        return by_itself.get(str(ends[0].get("policy")), f"the other ranks go on; %mesh heal (or mesh.heal()) puts {'them' if many else 'it'} back")

    def __str__(self) -> str:
        advice = self.advice()
        return "\n".join([self.message, *map(str, self.failures), *([advice] if advice else [])])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.failures, self.results, self.num_unfinished)


class ActorError(DeviceMeshError):
    """An endpoint, a function or a cell raised.

    Attributes:
        failures: each distinct failure with its ranks, first in time first.
        results: the values of the ranks that succeeded, by rank.
        exception: the original exception of the first failure.
        ranks: all ranks that failed.

    Example:
        >>> try:
        ...     trainer.step.call(batch).get()
        ... except ActorError as error:
        ...     print(error.ranks, error.exception)  # doctest: +SKIP
    """


class SupervisionError(DeviceMeshError):
    """Something that was used is dead: a rank, an actor or a mesh. Says which, on which host, and how it ended."""


def describe_end(end: Mapping[str, Any]) -> str:
    """Return how a process ended in one line, its last lines of output below."""
    if end.get("reason"):
        how = str(end["reason"])
    elif end.get("stopped"):
        how = "was stopped"
    elif end.get("signal"):
        how = f"was killed by {signal_name(end['signal'])}"
    else:
        how = f"exited with code {end.get('exit_code')}"
    text = f"the process {how} (pid {end.get('pid')} on {end.get('host')})"
    lines = [] if end.get("stopped") else str(end.get("last_lines", "")).splitlines()[-10:]
    return "\n".join([text, *(["its last output:"] if lines else []), *(f"  | {line}" for line in lines)])


def signal_name(number: int) -> str:
    """Return the name of a signal: 9 is SIGKILL."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
