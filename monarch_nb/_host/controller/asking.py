"""Requests of the controller to ranks: one message each, answers gathered, with a bound on the wait."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from monarch_nb._host.loop import Loop
from monarch_nb._protocol.base import Record, Request, decode, encode
from monarch_nb._protocol.failure import Failure
from monarch_nb._wire import address
from monarch_nb._wire import message as wire

Answers = dict[int, Any]
"""The values by rank; ranks that failed or didn't answer are missing."""

_FIRST_REF = 1 << 40
"""Refs below are numbers of cells."""


class _Question:
    __slots__ = ("answers", "done", "keeps_refusals", "left", "procs", "reads")

    def __init__(
        self,
        ranks: Mapping[int, int],
        reads: Callable[[Any], Any],
        done: Callable[[Answers], None],
        keeps_refusals: bool,
    ) -> None:
        self.reads = reads
        self.left = set(ranks)
        self.procs = dict(ranks)
        self.keeps_refusals = keeps_refusals
        self.answers: Answers = {}
        self.done = done


class Asking:
    """The requests to ranks that the controller waits for. Owned by the loop thread.

    Args:
        send: sends a frame to a rank, on this machine or another.
    """

    def __init__(self, loop: Loop, send: Callable[[int, bytes], None]) -> None:
        self._loop = loop
        self._send = send
        self._refs = itertools.count(_FIRST_REF)
        self._questions: dict[int, _Question] = {}

    def ask(
        self,
        ranks: Mapping[int, int],
        request: Request[Any],
        done: Callable[[Answers], None],
        timeout_s: float,
    ) -> None:
        """Send ranks (rank to proc) a request that they answer at once; `done` is called with the answers
        once all have arrived or the time is up.
        """
        reads = partial(decode, request.answer_type())
        self._send_all(
            ranks, request.wire_name, encode(request), _Question(ranks, reads, done, False), timeout_s
        )

    def have_done(
        self,
        ranks: Mapping[int, int],
        name: str,
        fields: Record | None,
        done: Callable[[Answers], None],
        timeout_s: float,
        *,
        answer: type[Record] | None = None,
        keeps_refusals: bool = False,
        **header: Any,
    ) -> None:
        """Have the main threads of ranks, or actors there, do something.

        Args:
            answer: the type of the answers; None: they aren't looked at, and each is None.
            keeps_refusals: whether failures are among the answers, each a `Failure`.
            header: more fields of the message.
        """
        reads = partial(decode, answer) if answer is not None else lambda _payload: None
        payload = b"" if fields is None else encode(fields)
        self._send_all(
            ranks, name, payload, _Question(ranks, reads, done, keeps_refusals), timeout_s, **header
        )

    def _send_all(
        self,
        ranks: Mapping[int, int],
        name: str,
        payload: bytes,
        question: _Question,
        timeout_s: float,
        **header: Any,
    ) -> None:
        ref = next(self._refs)
        self._questions[ref] = question
        for rank, proc in ranks.items():
            frame = wire.pack(
                wire.CALL,
                src=address.CONTROLLER,
                dst=proc,
                slot=rank,
                ref=ref,
                name=name.encode(),
                payload=payload,
                **header,
            )
            self._send(proc, frame)
        if not ranks:
            self._loop.call_later(0.0, lambda: self._finish(ref))
        self._loop.call_later(timeout_s, lambda: self._finish(ref))

    def answered(self, ref: int, rank: int, flags: int, payload: Any) -> None:
        """Handle the answer to a question."""
        question = self._questions.get(ref)
        if question is None:
            return
        question.left.discard(rank)
        if not flags & wire.ERROR:
            question.answers[rank] = question.reads(payload) if len(payload) else None
        elif question.keeps_refusals:
            question.answers[rank] = decode(Failure, payload)
        if not question.left:
            self._finish(ref)

    def forget(self, proc: int) -> None:
        """Stop waiting for answers of a rank that has died."""
        for ref, question in list(self._questions.items()):
            question.left -= {r for r in question.left if question.procs[r] == proc}
            if not question.left:
                self._finish(ref)

    def _finish(self, ref: int) -> None:
        question = self._questions.pop(ref, None)
        if question is not None:
            question.done(question.answers)
