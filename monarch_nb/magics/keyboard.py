"""What ranks ask in the cell that waits: each by itself, with its rank before it; the answer goes to that rank."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

from monarch_nb.debug import Question

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh

NO_KEYBOARD = "nobody can type where this notebook runs (papermill, nbclient)"


def answer_questions(mesh: Mesh) -> None:
    """Ask whoever sits here until no rank asks any more."""
    while rows := mesh._session.request("user_questions"):
        try:
            text = _asked(rows[0], len(mesh))
        except (NotImplementedError, RuntimeError) as error:  # StdinNotImplementedError is either, by version
            if "stdin" not in str(error).lower() and "input" not in str(error).lower():
                raise
            mesh._session.request("refuse_user", reason=NO_KEYBOARD)
        except KeyboardInterrupt:
            mesh.interrupt(sorted({row["rank"] for row in rows}))
            return
        else:
            if not mesh._session.request("answer_user", id=rows[0]["id"], text=text):
                print(f"rank {rows[0]['rank']} doesn't ask any more")


def _asked(row: dict[str, Any], num_ranks: int) -> str:
    prompt = f"[{row['rank']}] {row['prompt']}" if num_ranks > 1 else row["prompt"]
    with Question(getpass.getpass if row["hidden"] else None) as ask:
        return ask(prompt)
