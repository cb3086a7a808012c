"""Forwards questions of ranks (`input`, `getpass`) to the client that their cell or call belongs to.

A rank asks by a request, which is answered when somebody has typed. Only one client is asked: one that
watches the cell, or that made the call. When it leaves, or says that nobody can type there, the rank is told
why. When the rank doesn't wait any more, the client is told, and takes its prompt back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch_nb._journal.record import CLIENT_BITS, CLIENT_MASK, is_cell
from monarch_nb._protocol.events import AskedNoMore, UserAsked
from monarch_nb._protocol.keyboard import (
    AnswerUser,
    AskNoMore,
    AskUser,
    QuestionRow,
    RefuseUser,
    Typed,
    UserQuestions,
)
from monarch_nb._protocol.registry import LATER, Later, Sender, handles

if TYPE_CHECKING:
    from monarch_nb._host.controller.cells import Cells
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.controller.sending import Sends


@dataclass(frozen=True)
class Question:
    """A question of a rank that waits for a typed line.

    Attributes:
        id: its number in the mesh.
        ref: the number under which the rank waits.
        client: the client that is asked.
        hidden: whether the typed line isn't shown.
    """

    id: int
    proc: int
    ref: int
    client: int
    prompt: str
    hidden: bool


class QuestionService:
    """The service that keeps questions of ranks until a client has answered or refused them. Owned by the
    loop thread.
    """

    def __init__(self, registry: Registry, cells: Cells, sends: Sends) -> None:
        self._registry, self._cells, self._sends = registry, cells, sends
        self._ids = itertools.count(1)
        self._questions: dict[int, Question] = {}

    def is_asking(self, proc: int) -> bool:
        """Say whether a rank waits for typed input."""
        return any(q.proc == proc for q in self._questions.values())

    # --- ranks

    @handles(AskUser)
    def do_ask_user(self, request: AskUser, sender: Sender) -> Typed | Later:
        """Forward a rank's question; answers with the typed line, or why nobody can type."""
        client = self._client_of(request.origin)
        if client is None:
            return Typed(refused="no notebook watches this cell")
        question = Question(next(self._ids), sender.proc, sender.ref, client, request.prompt, request.hidden)
        self._questions[question.id] = question
        self._sends.event(client, UserAsked())
        return LATER

    def _client_of(self, origin: int) -> int | None:
        """Return the client that a cell, or a call, belongs to, if it has a notebook."""
        clients = self._registry.clients
        if is_cell(origin):
            found = self._cells.watchers(origin)
        else:
            found = [
                c.proc
                for c in clients.values()
                if c.number & CLIENT_MASK == origin >> CLIENT_BITS & CLIENT_MASK
            ]
        return next((proc for proc in reversed(found) if proc in clients and clients[proc].listens), None)

    @handles(AskNoMore)
    def do_ask_no_more(self, request: AskNoMore, sender: Sender) -> None:
        """Drop a question for which a rank no longer waits."""
        self._forget(lambda q: (q.proc, q.ref) == (sender.proc, request.ref))

    def proc_has_ended(self, proc: int) -> None:
        """Drop the questions of a rank that is dead."""
        self._forget(lambda q: q.proc == proc)

    def _forget(self, chosen: Callable[[Question], bool]) -> None:
        """Drop questions that no rank waits for, and have their prompts withdrawn."""
        over = [q for q in self._questions.values() if chosen(q)]
        for question in over:
            del self._questions[question.id]
        for client in {q.client for q in over}:
            self._sends.event(client, AskedNoMore(tuple(q.id for q in over if q.client == client)))

    # --- clients

    @handles(UserQuestions)
    def do_user_questions(self, request: UserQuestions, sender: Sender) -> list[QuestionRow]:
        """Return the questions to a client's user, by rank."""
        ranks = self._registry.procs
        mine = [q for q in self._questions.values() if q.client == sender.proc]
        rows = [QuestionRow(q.id, ranks[q.proc].rank, q.prompt, q.hidden) for q in mine]
        return sorted(rows, key=lambda row: (row.rank, row.id))

    @handles(AnswerUser)
    def do_answer_user(self, request: AnswerUser, sender: Sender) -> bool:
        """Forward a typed line to the rank; False if it no longer waits."""
        question = self._questions.pop(request.id, None)
        if question is not None:
            self._sends.reply(question.proc, question.ref, Typed(request.text))
        return question is not None

    @handles(RefuseUser)
    def do_refuse_user(self, request: RefuseUser, sender: Sender) -> None:
        """Refuse the questions sent to a client whose user can't type."""
        self._refuse(sender.proc, request.reason)

    def client_gone(self, client: int) -> None:
        """Refuse the questions sent to a client that is gone."""
        self._refuse(client, "the notebook that was asked is gone")

    def _refuse(self, client: int, reason: str) -> None:
        for question in [q for q in self._questions.values() if q.client == client]:
            del self._questions[question.id]
            self._sends.reply(question.proc, question.ref, Typed(refused=reason))
