"""All errors of this package.

    MeshError
     ├── DeviceMeshError        what was done on a mesh has failed: what a recovery loop catches
     │    ├── ActorError        an endpoint, function or cell raised, on some ranks
     │    │    └── UnknownVariable  (NameError) ranks have no variable of that name
     │    ├── RemoteException   an operation on tensors failed on ranks: raised where its value is waited for
     │    └── SupervisionError  (RuntimeError) something used is dead: a rank, an actor, a mesh
     │         ├── MeshFailure  what happened to it, as a value and as an exception
     │         └── MeshEnded    (TransportClosed) the mesh has ended: stopped, or its controller killed
     ├── TransportClosed           (RuntimeError) this program has left the mesh
     ├── RankTimeout            (TimeoutError) an answer didn't come in time; the mesh is unharmed
     ├── RequestFailed          (RuntimeError) a host process couldn't do what was asked; it says why
     ├── HealError              not all that was lost could be put back
     ├── MeshStartError         a host process or rank didn't start
     ├── MeshNotFound           (LookupError) no mesh of that name
     ├── MeshUnreachable        (ConnectionError) a handle on a mesh to which this process has no way
     ├── MeshUsageError         (ValueError) a wrong magic or argument, a cell that isn't Python
     │    ├── NameTaken         a mesh of that name runs, or is being started
     │    ├── WrongTensor       tensors that don't go together, or something that they can't do
     │    └── ShardingError     a tensor can't be laid out so, or the layout forbids an operation
     │         └── ShapeError   shapes fit in one process, but not on ranks that have parts
     ├── StaleCode              (RuntimeError) a rank runs other code than its file holds, and keeps it
     ├── ScriptExit             (RuntimeError) a script has left with another exit code than 0
     ├── WrongArguments         (TypeError) a call or a spawn with other arguments than it takes
     └── RDMAError              bytes could not be moved; the memory they were for may have part of them
          ├── BufferGone        the buffer was dropped, or its owner has ended or is another process by now
          ├── PathFailed        the path broke while it was used: says how, and the likely cause
          └── TransferTimeout   (TimeoutError) it took longer than it may

Of lower rooms, which know no meshes:

    CannotPickle                (TypeError) a value that can't be sent; defined in `_wire.codec`
    CannotUnpickle              (RuntimeError) an answer that can't be made here; defined in `_wire.codec`
    SharedMemoryError           (MemoryError) a value too large to be moved; defined in `_wire.segment`
    RankSetError                (ValueError) text that names no ranks; defined in `_shape.rank_set`

Ranks in messages are positions in the mesh (or slice) that was called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from monarch_nb._cells import with_names
from monarch_nb._folding import fold
from monarch_nb._protocol.exits import RankExit
from monarch_nb._shape.rank_set import RankSetError, name_ranks
from monarch_nb._tracebacks import ShowsItself
from monarch_nb._wire.codec import CannotPickle, CannotUnpickle
from monarch_nb._wire.segment import SharedMemoryError

__all__ = [
    "ActorError",
    "BufferGone",
    "CannotPickle",
    "CannotUnpickle",
    "DeviceMeshError",
    "HealError",
    "MeshEnded",
    "MeshError",
    "MeshNotFound",
    "MeshStartError",
    "MeshUnreachable",
    "MeshUsageError",
    "NameTaken",
    "PathFailed",
    "RDMAError",
    "RankFailure",
    "RankSetError",
    "RankTimeout",
    "RemoteException",
    "ScriptExit",
    "ShapeError",
    "ShardingError",
    "SharedMemoryError",
    "StaleCode",
    "SupervisionError",
    "TransferTimeout",
    "TransportClosed",
    "UnknownVariable",
    "WrongArguments",
    "WrongTensor",
]


class MeshError(ShowsItself, Exception):
    """The base class of all errors of a mesh."""


class TransportClosed(MeshError, RuntimeError):
    """The error raised after this program's connection to the mesh was closed: nothing can be sent or waited
    for.
    """


class MeshStartError(MeshError, RuntimeError):
    """The error of a host process or a rank that didn't start."""


class RequestFailed(MeshError, RuntimeError):
    """The error of a request that a host process couldn't carry out."""


class HealError(MeshError):
    """The error of a heal that could not repair all losses.

    Attributes:
        report: the report: what was repaired, and the problems.
    """

    def __init__(self, report: Any, what: str = "healing was not complete") -> None:
        super().__init__("\n".join([f"{what}:", *report.problems]))
        self.report = report


class MeshNotFound(MeshError, LookupError):
    """The error of a name that no running mesh has."""


class MeshUnreachable(MeshError, ConnectionError):
    """The error of a handle on a mesh that this process can't reach: it's on another machine, or has
    ended.
    """


class MeshUsageError(MeshError, ValueError):
    """The error of wrong arguments or wrong use; nothing has been sent."""


class StaleCode(MeshError, RuntimeError):
    """The error of a module whose loaded code differs from its file, when the new code can't be loaded or may
    not be: the cell or call hasn't begun.
    """


class ScriptExit(MeshError, RuntimeError):
    """The error of a script on a rank that exited with a non-zero exit code."""


class WrongArguments(MeshError, TypeError):
    """The error of a call or a spawn with arguments that don't fit the signature, or of an object that can't
    be called that way; nothing has been sent.
    """

    _shown_as = "TypeError"


class MeshNotReady(MeshUsageError):
    """The error of a mesh that has no ranks yet: it's being started, or waits for its hosts."""


class NameTaken(MeshUsageError):
    """The error of a name whose mesh runs already, or is being started by another program."""


class WrongTensor(MeshUsageError):
    """The error of tensors that can't be combined (of different meshes, or a plain one that would be
    changed), or of an operation that tensors of the mesh don't support.
    """


class ShardingError(MeshUsageError):
    """The error of a tensor that can't be laid out as requested, or of an operation that its layout doesn't
    permit.
    """


class ShapeError(ShardingError):
    """The error of shapes that fit in one process, but not on the ranks, each of which has a part. Its text
    names the layer and the parameter, and a command to type.
    """


class RDMAError(MeshError):
    """The error of bytes that could not be moved. The destination may have received part of them."""


class BufferGone(RDMAError):
    """The error of a buffer that was dropped, or whose owner has ended or been restarted. Ask the owner for a
    new handle.
    """


class PathFailed(RDMAError):
    """The error of a path that broke during a transfer; the message says how, and the likely cause."""


class TransferTimeout(RDMAError, TimeoutError):
    """The error of a transfer that exceeded its time limit. Bytes written so far stay written."""


class RankTimeout(MeshError, TimeoutError):
    """The error of an answer that didn't arrive within the timeout. The work continues, and the same future
    can be waited for again.
    """


FELT_S = 2.0
"""Errors of peers within this time before the event of a death may be its consequence: the event comes
through the controller, the peers notice directly.
"""


def cause_time(kind: str, when: float) -> float:
    """Return the sort key of failures in time, the first cause first.

    >>> sorted([("RuntimeError", 10.0), ("lost", 10.3)], key=lambda failure: cause_time(*failure))[0]
    ('lost', 10.3)
    """
    return when - FELT_S if kind == "lost" else when


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
        first: whether it was the first failure in time; a death goes before what its peers have raised just
            before it was known.
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
        """Return one line with ranks, type and message."""
        mark = " (first)" if self.first else ""
        return f"{name_ranks(self.ranks)}{mark}: {self.type}" + (f": {self.message}" if self.message else "")

    def __str__(self) -> str:
        return "\n".join(part for part in (self.headline(), with_names(self.traceback.rstrip())) if part)


def fold_alike(failures: Sequence[RankFailure]) -> list[RankFailure]:
    """Merge failures that differ only in numbers, for display: the merged texts have all values.

    >>> print(*fold_alike([RankFailure((r,), "ValueError", f"rank {r} broken") for r in range(4)]))
    ranks 0-3: ValueError: rank {0-3} broken
    """
    groups = fold((f.type, f.ranks, (f.message, f.traceback)) for f in failures)
    return [
        replace(
            failures[group.members[0]], ranks=group.ranks, message=group.texts[0], traceback=group.texts[1],
            first=len(groups) > 1 and any(failures[i].first for i in group.members),
        )
        for group in groups
    ]  # fmt: skip


ADVISERS: list[Callable[[Sequence[RankFailure]], str]] = []
"""Functions asked for further advice on failures: higher rooms know more about what to type."""


class DeviceMeshError(MeshError):
    """The error of an operation that failed on some ranks of a mesh: they have raised, or are dead. A
    recovery loop catches this error.

    Attributes:
        failures: each distinct failure with its ranks, first in time first.
        results: the values of the ranks that succeeded, by rank.
        num_unfinished: how many ranks had not finished.

    Its text has failures that differ only in numbers once, with the values listed (see `_folding`).

    Example:
        >>> try:                                         # doctest: +SKIP
        ...     trainer.step.call(batch).get()
        ... except DeviceMeshError:
        ...     mesh = monarch_nb.heal_mesh(mesh)
    """

    _is_brief = False

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

    @property
    def is_brief(self) -> bool:
        """Whether the error's text is one line: the failure was shown in full before."""
        return self._is_brief

    def advice(self) -> str:
        """Return advice about lost ranks, or about things that ranks lack; empty if there is none."""
        ends = [f.end for f in self.failures if f.end is not None and not f.end.get("stopped")]
        if not ends:
            return next(filter(None, (adviser(self.failures) for adviser in ADVISERS)), "")
        by_itself = {"heal": "healing begins by itself", "shrink": "the mesh will go on without it"}
        many = sum(len(f.ranks) for f in self.failures if f.end in ends) > 1
        return by_itself.get(
            str(ends[0].get("policy")),
            f"the other ranks go on; %mesh heal (or mesh.heal()) puts {'them' if many else 'it'} back",
        )

    def __str__(self) -> str:
        if self._is_brief:
            return self.message
        advice = self.advice()
        return "\n".join(
            [self.message, *map(self._block, fold_alike(self.failures)), *([advice] if advice else [])]
        )

    def _block(self, failure: RankFailure) -> str:
        is_known = failure.traceback and f"{failure.type}: {failure.message}" in self.message
        return with_names(failure.traceback.rstrip()) if is_known else str(failure)

    def briefly(self) -> Self:
        """Return this error with a text of one line, since the failure was shown in full before; the error
        keeps it.
        """
        self._is_brief = True
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            type(self),
            (self.message, self.failures, self.results, self.num_unfinished),
            {"_is_brief": self._is_brief},
        )


class ActorError(DeviceMeshError):
    """The error of an endpoint, a function or a cell that raised.

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


class UnknownVariable(ActorError, NameError):
    """The error of a variable that isn't defined on some ranks; it names the ranks, and similar names."""

    _shown_as = "NameError"


class NotDefinedHere(NameError):
    """A rank's error about variables that aren't defined there.

    Attributes:
        names: the undefined names.
        near: defined names that are similar.
        held: some of the defined names.
    """

    def __init__(self, names: Sequence[str], near: Sequence[str], held: Sequence[str]) -> None:
        super().__init__(
            f"name{'s' * (len(names) > 1)} {', '.join(map(repr, names))} "
            f"{'is' if len(names) == 1 else 'are'} not defined"
        )
        self.names, self.near, self.held = tuple(names), tuple(near), tuple(held)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.names, self.near, self.held)


class ActorAborted(BaseException):
    """The error of an actor that has aborted itself."""


class RemoteException(DeviceMeshError):
    """The error of an operation on tensors of the mesh that failed on ranks. It is raised where a dependent
    value is waited for.

    Its text names the operation, the ranks, the layer and the line of the program that made it.
    """

    def __str__(self) -> str:
        return "\n".join(
            [
                self.message,
                *(with_names(f.traceback.rstrip()) for f in fold_alike(self.failures) if f.traceback),
            ]
        )


class SupervisionError(DeviceMeshError, RuntimeError):
    """The error of using a dead rank, actor or mesh. It says which, on which host, and how it ended."""


class MeshEnded(SupervisionError, TransportClosed):
    """The error of a mesh that has ended: it was stopped, or its controller was killed. One sentence says who
    ended it, how, what is lost and what to type.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def describe_end(end: RankExit) -> str:
    """Return how a process ended in one line, followed by its last lines of output."""
    if end.reason:
        how = end.reason
    elif end.stopped:
        how = "was stopped"
    elif end.signal:
        how = f"was killed by {signal_name(end.signal)}"
    else:
        how = f"exited with code {end.exit_code}"
    pid = f"pid {end.pid} " if end.pid else ""
    text = f"the process {how} ({pid}on {end.host})"
    lines = [] if end.stopped else end.last_lines.splitlines()[-10:]
    return "\n".join([text, *(["its last output:"] if lines else []), *(f"  | {line}" for line in lines)])


def signal_name(number: int) -> str:
    """Return the name of a signal: 9 is SIGKILL."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
