"""Reports failures that no exception carries to the user, each once, and equal ones together.

Actors that have failed by themselves (`__init__`, a broadcast) go to the program's fault hook: those of one
mesh that fail within `WINDOW_S` are one failure, and one that was told before, by the hook or by an
exception, isn't told again. Calls that have failed and whose future is dropped unread are said on stderr, as
asyncio does: the transport takes note of them when their answer comes, and only of those that failed.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from monarch_nb._client.actor_states import ActorState
from monarch_nb._client.outcome import dropped_error
from monarch_nb._protocol.failure import Failure
from monarch_nb._runtime.supervision import MeshFailure, call_fault_hook, has_own_hook
from monarch_nb._transport.pending import Pending

if TYPE_CHECKING:
    from monarch_nb._client.session import Session

WINDOW_S = 0.2
"""Failures within this time are reported together; callers who wait for an answer (see `ERROR_GRACE_S`) have
it by then.
"""
SILENCE_S = 60.0
"""How long an equal dropped failure isn't reported again."""


class FailureReports:
    """The reporter of failures that no exception carries to the user. One per session.

    `actor_failed` and `dropped` are quick and may be called in any thread; the background reader reports.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._actors: dict[int, list[Failure]] = {}
        self._dropped: dict[int, tuple[Pending, str, contextvars.Context]] = {}
        self._reported: dict[Any, float] = {}
        """Time of the last report of each kind of dropped failure."""
        self._armed = False

    def begin_cell(self) -> None:
        """Forget which dropped failures were reported: in another cell they are reported again."""
        self._reported.clear()

    def actor_failed(self, actor_id: int, failure: Failure) -> None:
        """Mark the mesh of a failed actor; report the failure in a moment, unless an exception has done so by
        then.
        """
        states = self._session.actor_states
        state = states.get(actor_id)
        if state is None:  # no handle is left; other ranks may tell of the same a moment later
            states[actor_id] = state = ActorState()
        state.fail(failure)
        with self._lock:
            self._actors.setdefault(actor_id, []).append(failure)
        self._arm()

    def dropped(self, pending: Pending, what: str) -> None:
        """Record a failed call whose answer nobody can read any more; `flush` reports it."""
        with self._lock:
            self._dropped[id(pending)] = pending, what, contextvars.copy_context()
        self._arm()

    def _arm(self) -> None:
        transport = self._session.transport
        if transport.closed:
            self.flush()
            return
        with self._lock:
            if self._armed:
                return
            self._armed = True
        transport.reader.call_at(time.monotonic() + WINDOW_S, self.flush)

    def flush(self) -> None:
        """Report the failures of actors and of dropped calls that have been collected."""
        with self._lock:
            self._armed = False
            actors, self._actors = self._actors, {}
            over = {
                key: each
                for key, each in self._dropped.items()
                if each[0].ready or self._session.transport.closed
            }
            self._dropped = {key: each for key, each in self._dropped.items() if key not in over}
        for actor_id, failures in actors.items():
            self._tell_hook(actor_id, failures)
        if over:
            self._say_dropped(list(over.values()))
        if self._dropped:  # the other ranks may still run for a moment
            self._arm()

    def _tell_hook(self, actor_id: int, failures: list[Failure]) -> None:
        state = self._session.actor_states.get(actor_id)
        unreported = failures if state is None else state.take_unreported(failures)
        # the program's handler acts on it, even if the user was told
        if has_own_hook() and state is not None:
            unreported = state.take_unreported(failures, "hook")
        if unreported:
            call_fault_hook(MeshFailure.from_failures(unreported))

    def _say_dropped(self, dropped: list[tuple[Pending, str, contextvars.Context]]) -> None:
        errors: dict[tuple[str, str], list[tuple[Any, contextvars.Context]]] = {}
        for pending, what, context in dropped:
            error = dropped_error(pending, what)
            if error is not None:
                key = (error.message.partition(":")[0], " ".join(sorted({f.type for f in error.failures})))
                errors.setdefault(key, []).append((error, context))
        now = time.monotonic()
        for key, found in errors.items():
            if now - self._reported.get(key, -SILENCE_S) < SILENCE_S:
                continue
            self._reported[key] = now
            error, context = found[0]
            many = f" ({len(found)} calls)" if len(found) > 1 else ""
            context.run(_write, f"a call has failed, and its answer was not read{many}: {error}\n")


def _write(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
