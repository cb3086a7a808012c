"""Questions of ranks in the waiting cell: one at a time, labelled with the rank, which gets the answer.

A rank that no longer waits for input (it's dead, or was interrupted) has its question taken back.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_nb._debug import Question, TakenBack
from monarch_nb._protocol.keyboard import AnswerUser, QuestionRow, RefuseUser, UserQuestions
from monarch_nb.actor.handle import session_of

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh

NO_KEYBOARD = "no input can be typed where this notebook runs (papermill, nbclient)"
WITHDRAWN_S = 2.0
POLL_S = 0.02
INPUT_OVER_MIME = "application/vnd.monarch-nb.input-over+json"


def answer_questions(mesh: Mesh) -> None:
    """Prompt this notebook's user for answers until no rank has a question."""
    session = session_of(mesh)
    while True:
        seen = session.num_questions_over
        rows = session.request(UserQuestions())
        if not rows:
            return
        try:
            text = _asked(mesh, rows[0], seen)
        except (NotImplementedError, RuntimeError) as error:  # StdinNotImplementedError is either, by version
            if "stdin" not in str(error).lower() and "input" not in str(error).lower():
                raise
            session.request(RefuseUser(NO_KEYBOARD))
        except KeyboardInterrupt:
            _interrupt(mesh, rows)
            return
        except TakenBack:
            pass
        else:
            if not session.request(AnswerUser(rows[0].id, text)):
                print(f"rank {rows[0].rank} no longer waits for input")


def _interrupt(mesh: Mesh, rows: Sequence[QuestionRow]) -> None:
    """Interrupt the ranks that ask, and wait until they have withdrawn their questions: otherwise the user
    would be asked once more. One that asks in a thread doesn't withdraw it.
    """
    mesh.interrupt(sorted({row.rank for row in rows}))
    asked, deadline = {row.id for row in rows}, time.monotonic() + WITHDRAWN_S
    while time.monotonic() < deadline:
        if asked.isdisjoint(row.id for row in session_of(mesh).request(UserQuestions())):
            return
        time.sleep(POLL_S)


def _asked(mesh: Mesh, row: QuestionRow, seen: int) -> str:
    """Prompt for one question of a rank.

    Args:
        seen: how many questions were over before it was known that this one isn't.

    Raises:
        TakenBack: if the rank no longer waits for input.
    """

    def taken_back() -> None:
        close_box()
        print(f"rank {row.rank} no longer waits for input")

    prompt = f"[{row.rank}] {row.prompt}" if len(mesh) > 1 else row.prompt
    session = session_of(mesh)
    with Question(getpass.getpass if row.hidden else None, taken_back) as ask:
        session.take_back_question[row.id] = ask.take_back
        try:
            if session.num_questions_over != seen:
                raise TakenBack  # perhaps this question has ended: look again
            return ask(prompt)
        finally:
            del session.take_back_question[row.id]


def close_box() -> None:
    """Have the front end remove its input box: the kernel no longer waits for it.

    Jupyter's protocol has no message for that. An update of a display that isn't there is one that everybody
    else passes over, and ours looks for the type.
    """
    from IPython import get_ipython

    shell = get_ipython()
    if getattr(shell, "kernel", None) is None:
        print()  # output that follows doesn't belong on the prompt's line
        return
    shell.display_pub.publish(
        data={INPUT_OVER_MIME: {}}, transient={"display_id": "monarch-nb-input"}, update=True
    )
