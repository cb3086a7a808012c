"""Types of requests by which ranks ask whoever sits at the keyboard for input."""

from __future__ import annotations

from monarch_nb._protocol.base import Record, Request


class Typed(Record, frozen=True):
    """The line that somebody has typed; or why nobody can (`refused`)."""

    text: str = ""
    refused: str = ""


class AskUser(Request[Typed], frozen=True):
    """A rank waits for a line.

    Attributes:
        origin: the cell or call that it belongs to.
        hidden: whether what is typed isn't shown.
    """

    prompt: str
    hidden: bool
    origin: int


class AskNoMore(Request[None], frozen=True):
    """A rank doesn't wait for an answer any more."""

    ref: int


class QuestionRow(Record, frozen=True):
    """A rank that waits for a line."""

    id: int
    rank: int
    prompt: str
    hidden: bool


class UserQuestions(Request[list[QuestionRow]], frozen=True):
    """Return what the program that asks is asked, by rank."""


class AnswerUser(Request[bool], frozen=True):
    """Somebody has typed; answers whether the rank still waited for it."""

    id: int
    text: str


class RefuseUser(Request[None], frozen=True):
    """Nobody can type where the program is."""

    reason: str
