"""A run of a cell, as a client sees it: the controller runs the cell; the client waits for it, interrupts it,
and turns its end into a result or an error.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from monarch_nb._client import waiting
from monarch_nb._client.feed import Feed, LeavesOut, Watcher, may_leave_out
from monarch_nb._client.interrupts import Interrupts
from monarch_nb._client.kernel import KernelShutDown
from monarch_nb._display import ansi
from monarch_nb._protocol.base import Request
from monarch_nb._protocol.hang import RankStacks
from monarch_nb._protocol.journal import Seen
from monarch_nb._protocol.shown import CellEnd, MimeBundle, Shown
from monarch_nb._protocol.states import CellStatus, EndReason
from monarch_nb._shape import format_ranks, name_ranks
from monarch_nb._stacks import innermost
from monarch_nb._transport.failure import revive
from monarch_nb._units import time_text
from monarch_nb.actor.handle import session_of, transport_of
from monarch_nb.exceptions import (
    ActorError,
    MeshEnded,
    MeshError,
    MeshUsageError,
    RankFailure,
    RankTimeout,
    TransportClosed,
    cause_time,
    describe_end,
    fold_alike,
)

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

_ENDED = "the mesh has ended, and this cell with it"


@dataclass(repr=False)
class CellResult:
    """The result of a cell.

    Attributes:
        n: its number in the journal.
        ranks: the ranks that it ran on.
        bundles: the last expression's value by rank, as a mimebundle.
        failures: the error of each rank that raised, by rank.
        seconds: run time by rank.
        unfinished: ranks that were given up, with the place where each stands.
        stopped: ranks that were interrupted.
        reason: why it was interrupted: user, failure, or "timeout SECONDS"; empty if it wasn't.
        messages: messages of the controller.
    """

    ranks: tuple[int, ...]
    n: int = 0
    bundles: dict[int, MimeBundle] = field(default_factory=dict)
    failures: dict[int, RankFailure] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    unfinished: dict[int, RankStacks] = field(default_factory=dict)
    stopped: tuple[int, ...] = ()
    reason: str = ""
    messages: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        error = self.error()
        how = "ok" if error is None else f"{type(error).__name__}: {str(error).splitlines()[0]}"
        took = f", {time_text(max(self.seconds.values()))}" if self.seconds else ""
        return f"<CellResult of #{self.n} on {name_ranks(self.ranks)}: {how}{took}>"

    @property
    def ended(self) -> tuple[int, ...]:
        """Ranks that have ended the cell so far."""
        return tuple(sorted({*self.seconds, *self.failures}))

    def error(self) -> BaseException | None:
        """Return the error of this result, if there is one."""
        if self.reason.startswith("timeout"):
            return RankTimeout(self._late(float(self.reason.split()[1])))
        if self.reason == EndReason.USER:
            return CellInterrupted("\n".join(self._interrupted()))
        if self.failures or self.unfinished:
            return self._failed()
        return None

    def raise_error(self) -> None:
        """Raise what `error` returns, if anything."""
        error = self.error()
        if error is not None:
            raise error

    def _late(self, timeout_s: float) -> str:
        text = f"the cell did not end within {timeout_s:g} s"
        if self.stopped:
            text += f": {name_ranks(self.stopped)} {_were(self.stopped)} interrupted"
        return "\n".join([text, *self._stuck()])

    def _interrupted(self) -> list[str]:
        lines = [f"{name_ranks(self.stopped)} {_were(self.stopped)} interrupted"] if self.stopped else []
        if self.failures:
            lines += [str(f) for f in fold_alike(fold_failures(self.failures.values()))]
        return [*lines, *self._stuck()] or ["the cell had ended"]

    def _stuck(self) -> list[str]:
        if not self.unfinished:
            return []
        ranks = format_ranks(self.unfinished)
        them = "it" if len(self.unfinished) == 1 else "them"
        lines = [f"{name_ranks(self.unfinished)} did not react and {_hang(self.unfinished)} in this cell:"]
        for rank, found in self.unfinished.items():
            lines.append(f"  rank {rank} {innermost(found)}")
        return [
            *lines,
            (
                f"next: %mesh stacks --ranks {ranks} shows more; %mesh restart --ranks {ranks} starts "
                f"{them} anew"
            ),
        ]

    def _failed(self) -> CellError:
        text = f"the cell failed on {len(self.failures)} of {len(self.ranks)} ranks"
        if self.stopped:
            text += f"; {name_ranks(self.stopped)} {_were(self.stopped)} interrupted"
        text = "\n".join([text, *self._stuck()])
        return CellError(text, fold_failures(self.failures.values()), {}, len(self.unfinished))


def _were(ranks: Sequence[int]) -> str:
    return "was" if len(ranks) == 1 else "were"


def _hang(ranks: Mapping[int, Any]) -> str:
    return "hangs" if len(ranks) == 1 else "hang"


class CellError(ActorError):
    """The error of a cell that failed on some ranks. A notebook shows it in colours, and without the frames
    of this package: they'd tell the reader nothing.
    """

    def __str__(self) -> str:
        return ansi.strip(super().__str__())

    def _render_traceback_(self) -> list[str]:
        return super().__str__().split("\n")


class CellInterrupted(KeyboardInterrupt):
    """The error of a cell that the user has interrupted. It lists the ranks that have ended it, and those
    that hang, with their places and a command to type.
    """

    def _render_traceback_(self) -> list[str]:
        return f"KeyboardInterrupt: {self}".split("\n")


class _Nobody:
    """A view that shows nothing."""

    def text(self, rank: int, stream: str, text: str) -> None: ...
    def display(self, rank: int, shown: Shown) -> None: ...
    def ended(self, rank: int, end: CellEnd) -> None: ...
    def ended_well(self, seconds: Mapping[int, float]) -> None: ...
    def waits(self, text: str) -> None: ...
    def message(self, text: str) -> None: ...


class CellRun:
    """A run of a cell, as a client sees it. `wait` and `get` may be called from any thread, and again.

    Example:
        >>> run = mesh.submit("train()")           # doctest: +SKIP
        >>> run                                    # doctest: +SKIP
        <CellRun of #12 on ranks 0-7: running>
        >>> run.get().seconds[0]                   # doctest: +SKIP
        3600.2
    """

    def __init__(self, mesh: Mesh, ranks: tuple[int, ...], watcher: Watcher | None) -> None:
        self._mesh = mesh
        self._watcher: Watcher = watcher if watcher is not None else _Nobody()
        self.result = CellResult(ranks)
        self._feed = Feed(transport_of(mesh), self)

    def start(self, request: Request[None]) -> CellRun:
        """Submit the cell to the controller."""
        session_of(self._mesh).watch(self._feed, request)
        return self

    # --- events, in the reading thread

    @property
    def may_leave_out(self) -> bool:
        """Whether the watcher need not see all lines."""
        return may_leave_out(self._watcher)

    def left_out(self, num_lines: int) -> None:
        """Tell the watcher that lines were left out."""
        cast(LeavesOut, self._watcher).left_out(num_lines)

    def text(self, rank: int, stream: str, text: str) -> None:
        """Pass a rank's output text to the watcher."""
        self._watcher.text(rank, stream, text)

    def display(self, rank: int, shown: Shown) -> None:
        """Pass a rank's rich display to the watcher."""
        self._watcher.display(rank, shown)

    def ended(self, rank: int, end: CellEnd) -> None:
        """Handle the end of the cell on a rank: record its time, and its error or value; tell the watcher."""
        result = self.result
        if end.seconds is not None:
            result.seconds[rank] = end.seconds
        if end.status in (CellStatus.ERROR, CellStatus.LOST):
            result.failures[rank] = failure_of(rank, end)
        elif end.value is not None:
            result.bundles[rank] = end.value
        self._watcher.ended(rank, end)

    def ended_well(self, seconds: Mapping[int, float]) -> None:
        """Record the times of ranks on which the cell has ended well, with no value; tell the watcher."""
        self.result.seconds.update(seconds)
        self._watcher.ended_well(seconds)

    def waits(self, text: str) -> None:
        """Tell the watcher what the cell waits for; an empty text: it waits no longer."""
        self._watcher.waits(text)

    def message(self, text: str) -> None:
        """Record a message of the host process, and pass it to the watcher."""
        self.result.messages.append(text)
        self._watcher.message(text)

    # --- waiting

    @property
    def n(self) -> int:
        """Its number in the journal; 0 until the controller has accepted it."""
        return self._feed.n

    def wait_for_number(self, timeout_s: float) -> int:
        """Wait until the controller has accepted the cell; return its number in the journal.

        Raises:
            MeshUsageError: if it refused.
        """
        transport_of(self._mesh).reader.ensure_reading()
        if not self._feed.wait_for("began", timeout_s):
            raise MeshError(
                f"the host process did not take the cell within {timeout_s:g} s; see %mesh status"
            )
        self._feed.check_fault()
        if self._feed.error:
            raise MeshUsageError(self._feed.error)
        return self._feed.n

    def wait_caught_up(self, timeout_s: float) -> bool:
        """Wait until all output printed before now has arrived, in a replay; say whether it has."""
        transport_of(self._mesh).reader.ensure_reading()
        return self._feed.wait_for("live", timeout_s)

    @property
    def done(self) -> bool:
        """Whether the cell is over."""
        return self._feed.ready

    @property
    def is_ok(self) -> bool:
        """Whether the cell has ended well on all ranks."""
        summary = self._feed.summary
        return summary is not None and summary.status == CellStatus.OK

    @property
    def fault(self) -> Exception | None:
        """Why no more events will arrive, if the mesh has ended, or this program has left it."""
        return self._feed.fault

    @property
    def is_left(self) -> bool:
        """Whether this program has left the mesh meanwhile: the cell continues."""
        return isinstance(self.fault, TransportClosed) and not isinstance(self.fault, MeshEnded)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Register a callback for the end of the cell, called in the thread that receives the event: it must
        be quick.
        """
        self._feed.when_ready(callback)

    def interrupt(self) -> None:
        """Interrupt the cell; a repeated call takes the next step at once (see
        `_host.controller.escalation`).
        """
        self._feed.interrupt()

    def wait(self, timeout: float | None = None, *, interrupts: Interrupts | None = None) -> CellResult:
        """Wait until the cell is over. Ctrl-C interrupts the ranks; pressed again, it takes the next step at
        once.

        Args:
            timeout: seconds; then RankTimeout is raised and the cell goes on.
            interrupts: what passes Ctrl-C on already, if something does.

        Raises:
            MeshUsageError: if the controller refused it.
            KernelShutDown: (a KeyboardInterrupt) if this kernel is being shut down; the cell goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if interrupts is None:
            with Interrupts(transport_of(self._mesh).reader, self.interrupt) as interrupts:
                in_time = self._wait(deadline)
        else:
            in_time = self._wait(deadline)
        if not in_time:
            raise RankTimeout(f"cell #{self.n} is not over after {timeout:g} s; it goes on")
        if interrupts.num_presses and not self.result.reason:
            self.result.reason = EndReason.USER
        return self._finished()

    def _wait(self, deadline: float | None) -> bool:
        try:
            return waiting.wait(self._feed, deadline)
        except MeshEnded:
            raise
        except TransportClosed:
            raise self._left() from None
        except KernelShutDown:
            raise KernelShutDown(f"this kernel is being shut down; {self.goes_on()}") from None

    def goes_on(self) -> str:
        """Return a sentence about a cell that continues though the program no longer waits for it."""
        number = f"cell #{self.n}" if self.n else "the cell"
        name = self._mesh.name
        return f"{number} goes on in mesh {name!r}. See it: %mesh attach {name}"

    def _left(self) -> TransportClosed:
        return TransportClosed(f"this program has left the mesh, and {self.goes_on()}")

    def _finished(self) -> CellResult:
        feed, result = self._feed, self.result
        if self.is_left:
            raise self._left()
        feed.check_fault()
        if feed.error:
            raise MeshUsageError(feed.error)
        if feed.summary is None:
            raise MeshError(_ENDED)
        result.n = feed.n
        result.unfinished = dict(feed.summary.unfinished)
        result.stopped = tuple(feed.summary.stopped)
        result.reason = feed.summary.reason or result.reason
        return result

    def get(self, timeout: float | None = None) -> CellResult:
        """Wait until the cell is over, and return its result, as `mesh.run` does.

        Args:
            timeout: seconds; then RankTimeout is raised and the cell goes on.

        Raises:
            CellError: if it raised on any rank.
            RankTimeout: if it's not over in time, or was given less.
            CellInterrupted: (a KeyboardInterrupt) if it was interrupted.
        """
        result = self.wait(timeout)
        self._mesh.last_error = result.error() or self._mesh.last_error
        result.raise_error()
        return result

    def __repr__(self) -> str:
        if not self.done:
            how = (
                f"{len(self.result.ended)} of {len(self.result.ranks)} ranks have ended it"
                if self.result.ended
                else "running"
            )
        else:
            how = (
                "over"
                if self._feed.summary is not None
                else "refused"
                if self._feed.error
                else "lost with its mesh"
            )
            failed = self.result.failures
            how = f"failed on {name_ranks(failed)}" if failed else how
        number = f"#{self.n}" if self.n else "a cell"
        return f"<CellRun of {number} on {name_ranks(self.result.ranks)}: {how}>"

    def seen(self) -> None:
        """Mark the cell's end as seen in the journal."""
        with suppress(TransportClosed):
            session_of(self._mesh).tell(Seen([self._feed.n]))


def failure_of(rank: int, end: CellEnd) -> RankFailure:
    """Return the failure of a rank from its answer."""
    if end.end is not None:
        return RankFailure((rank,), "lost", describe_end(end.end), when=end.when, end=end.end.plain())
    return RankFailure(
        ranks=(rank,),
        type=end.ename,
        message=end.evalue,
        traceback=end.traceback,
        exception=revive(base64.b64decode(end.exception)) if end.exception else None,
        when=end.when,
    )


def fold_failures(failures: Any) -> list[RankFailure]:
    """Merge equal failures, with their ranks, first in time first and marked."""
    found: dict[tuple[str, str, str], list[RankFailure]] = {}
    for failure in sorted(failures, key=lambda f: cause_time(f.type, f.when)):
        found.setdefault((failure.type, failure.message, failure.traceback), []).append(failure)
    return [
        RankFailure(
            ranks=tuple(sorted(r for f in group for r in f.ranks)),
            type=group[0].type,
            message=group[0].message,
            traceback=group[0].traceback,
            exception=group[0].exception,
            when=group[0].when,
            first=i == 0 and len(found) > 1,
            end=group[0].end,
        )
        for i, group in enumerate(found.values())
    ]
