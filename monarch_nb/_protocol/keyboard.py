"""Types of requests by which ranks ask the user for input."""

from __future__ import annotations

from monarch_nb._protocol.base import Record, Request


class Typed(Record, frozen=True):
    """The line that somebody has typed; or the reason why nobody can (`refused`)."""

    text: str = ""
    refused: str = ""


class AskUser(Request[Typed], frozen=True):
    """Have the user type a line for a waiting rank.

    Attributes:
        origin: the cell or call that it belongs to.
        hidden: whether the typed line isn't shown.
    """

    prompt: str
    hidden: bool
    origin: int


class AskNoMore(Request[None], frozen=True):
    """Drop a rank's question: it doesn't wait for an answer any more. `ref`: of its `AskUser`."""

    ref: int


class QuestionRow(Record, frozen=True):
    """A question of a rank that waits for a line."""

    id: int
    rank: int
    prompt: str
    hidden: bool


class UserQuestions(Request[list[QuestionRow]], frozen=True):
    """Return the questions of ranks that this program has to show, by rank."""


class AnswerUser(Request[bool], frozen=True):
    """Give a rank the line that somebody has typed; answers whether the rank still waited for it."""

    id: int
    text: str


class RefuseUser(Request[None], frozen=True):
    """Refuse all questions that this program was given, for nobody can type where it runs.

    `input` on the ranks raises then, with `reason`.
    """

    reason: str
