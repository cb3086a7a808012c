"""Handles failures: ranks that can't continue report, and wait until it's known whether all have failed at
the same command.

If all have, they are together still, and go on with the next one. If only some did, the others may wait for
them in a collective, for good: they are stopped, meet anew, and go on behind the last command that anyone has
begun.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from monarch_nb._rank.tensor.protocol import GoOn, Report, Reset, Resume
from monarch_nb._tensor.failure import Failure
from monarch_nb.actor import Channel
from monarch_nb.exceptions import MeshError, RemoteException, SupervisionError

if TYPE_CHECKING:
    from monarch_nb._tensor.controller import Engine

GRACE_S = 0.25
"""How long the other ranks have to fail at the same command."""
AGAIN_S = 0.5
"""Interval at which ranks that don't stop are told again: one may have entered another collective
meanwhile.
"""
MEET_S = 30.0
STUCK_S = 5.0
"""How long a rank that is behind may stay at one command before it counts as one that doesn't come."""
KEPT = 1000
"""Number of failures that are told in full."""
STARTED_ANEW = (
    "a rank was lost, and started anew since: what was asked for is lost. Do it again: tensors of which "
    "other ranks have all parts live on, the others say that they are lost"
)


class Barrier:
    """The failure handling of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.port, self._receiver = Channel.open()
        self._reports: dict[int, Report] = {}
        self._failures: dict[int, Failure] = {}
        self._changed = threading.Condition()
        self._deciding = self._is_void = False
        self._listen()

    def error(self, seq: int) -> RemoteException:
        """Return the error of a command that has failed."""
        found = self._failures.get(seq)
        return (
            found.error()
            if found is not None
            else RemoteException(f"command {seq} failed, on which this depends")
        )

    def release(self) -> None:
        """Cancel the pending decision, because a rank was lost; ranks that wait for a decision start
        again.
        """
        with self._changed:
            self._is_void = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._deciding, MEET_S)
            self._reports.clear()
            self._is_void = False
        self._engine.control.halt.call().get(MEET_S)
        self._engine.control.decide.call(Reset()).get(MEET_S)

    # --- reports

    def _listen(self) -> None:
        self._receiver.recv().add_done_callback(self._reported)

    def _reported(self, future: Any) -> None:
        """Handle a rank's report, and start to decide. Called in the reading thread, so it never waits."""
        try:
            report: Report = future.get()
        except (MeshError, RuntimeError):  # the mesh has ended
            return
        self._listen()
        if report.epoch != self._engine.epoch:  # from before a loss
            return
        with self._changed:
            self._reports[report.rank] = report
            self._changed.notify_all()
            if self._deciding:
                return
            self._deciding = True
        threading.Thread(target=self._decide, name="tensor-barrier", daemon=True).start()

    def _decide(self) -> None:
        try:
            self._settle()
        except SupervisionError as error:
            self._engine.lose(error)
        except MeshError as error:
            self._engine.lose(
                SupervisionError(f"the ranks couldn't be synchronised again after a failure: {error}")
            )
        finally:
            with self._changed:
                self._deciding = False
                self._changed.notify_all()

    def _settle(self) -> None:
        are_here = self._all_within(GRACE_S) or self._all_come()
        if are_here and len({r.seq for r in self._reports.values()}) == 1:
            self._go_on()
            return
        self._halt()
        self._engine.worker.stand.broadcast()  # for ranks that have nothing to do
        while not self._all_within(AGAIN_S):
            if self._is_void:
                return
            self._halt()
        self._resume()

    def _all_come(self) -> bool:
        """Wait for ranks that are still before the command at which the others have failed, as long as they
        move; return whether all have come.
        """
        before, until = self._behind(), time.monotonic() + STUCK_S
        while before and time.monotonic() < until:
            if self._all_within(GRACE_S):
                return True
            behind = self._behind()
            until = until if behind == before else time.monotonic() + STUCK_S
            before = behind
        return self._all_within(GRACE_S)  # one that has just come to the command gets its time, too

    def _behind(self) -> dict[int, int]:
        """Return at which command ranks are that come yet to the one at which the others have failed, if it's
        the same one.
        """
        positions = list(self._engine.control.position.call().get(MEET_S).values())
        with self._changed:
            seqs = {report.seq for report in self._reports.values()}
            missing = [rank for rank in range(self._engine.num_ranks) if rank not in self._reports]
        if self._is_void or len(seqs) != 1 or any(positions[rank] is None for rank in missing):
            return {}
        return {rank: positions[rank] for rank in missing if positions[rank] < min(seqs)}

    def _halt(self) -> None:
        """Stop all ranks.

        Raises:
            SupervisionError: if a rank is dead or was restarted, so that the others can't continue.
        """
        if not all(self._engine.control.halt.call().get(MEET_S).values()):
            self._engine.control.decide.call(Reset()).get(MEET_S)
            raise SupervisionError(STARTED_ANEW)

    def _all_within(self, seconds: float) -> bool:
        """Wait until all ranks have reported; return whether they have."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_void or self._are_all_here(), seconds)
            return not self._is_void and self._are_all_here()

    def _are_all_here(self) -> bool:
        return len(self._reports) == int(self._engine.num_ranks)

    # --- decisions

    def _go_on(self) -> None:
        reports = self._take_reports()
        seq = reports[0].seq
        self._note(seq, reports, is_partial=False)
        self._engine.control.decide.broadcast(GoOn(seq))

    def _resume(self) -> None:
        reports = self._take_reports()
        causes = (
            [r for r in reports if r.kind and not _is_consequence(r)]
            or [r for r in reports if r.kind]
            or reports
        )
        cause = min(r.seq for r in causes)
        self._note(cause, [r for r in causes if r.seq == cause], is_partial=True)
        address = self._engine.control_of(0).open_store.call_one().get(MEET_S)
        decision = Resume(
            cause,
            min(r.seq for r in reports),
            max(r.seq + bool(r.kind) for r in reports),
            self._engine.next_epoch(),
            address,
        )
        self._engine.control.decide.broadcast(decision)

    def _take_reports(self) -> list[Report]:
        with self._changed:
            reports, self._reports = sorted(self._reports.values(), key=lambda r: r.rank), {}
        return reports

    def _note(self, seq: int, reports: list[Report], *, is_partial: bool) -> None:
        engine = self._engine
        place = engine.places.of(seq, engine.stream.count)
        while len(self._failures) >= KEPT:
            del self._failures[next(iter(self._failures))]
        self._failures[seq] = Failure(seq, tuple(reports), engine.num_ranks, place, is_partial)


def _is_consequence(report: Report) -> bool:
    """Return whether a rank raised only because its connections were shut down, or its peers have gone."""
    return any(
        word in report.message
        for word in ("Connection closed by peer", "Connection reset", "gloo/transport", "NCCL")
    )
