"""Verbs of the debugger: debug, break; and the debugger's prompt in a waiting cell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from monarch_nb._client import kernel
from monarch_nb._commands.parser import Namespace
from monarch_nb._debug import Prompt, Question
from monarch_nb._magics.keyboard import answer_questions, close_box
from monarch_nb._magics.state import State
from monarch_nb._shape import format_ranks, name_ranks
from monarch_nb._transport.transport import TransportClosed
from monarch_nb.actor.handle import session_of, transport_of
from monarch_nb.exceptions import MeshUsageError, RequestFailed

if TYPE_CHECKING:
    from monarch_nb._client.session import Session
    from monarch_nb.mesh import Mesh


def debug(state: State, arguments: Namespace) -> None:
    """Show the debugger's prompt for ranks that are stopped at a breakpoint, or have failed."""
    mesh = state.mesh(arguments.name)
    debugger = mesh.debugger()
    if arguments.post_mortem:
        debugger.post_mortem(arguments.ranks)
    if not debugger.stops():
        hint = "put breakpoint() into a cell or an endpoint, or set one from outside: %mesh break FILE:LINE"
        failed = " has failed, or its frames are gone" if arguments.post_mortem else " stands at a breakpoint"
        print(f"no rank of mesh {mesh.name!r}{failed}. {'' if arguments.post_mortem else hint}".rstrip())
        return
    talk(mesh)


def talk(mesh: Mesh) -> bool:
    """Show the prompt in this cell until no thread is stopped, or the user leaves.

    Raises:
        MeshUsageError: if nobody can type here; the ranks run on, without breakpoints.
    """
    session_of(mesh).num_prompts += 1
    try:
        with Question(on_taken_back=close_box) as read:
            return Prompt(mesh, read).run()
    except (NotImplementedError, RuntimeError) as error:  # StdinNotImplementedError is either, by version
        if "stdin" not in str(error).lower() and "input" not in str(error).lower():
            raise
        stops = mesh.debugger().stops()
        mesh.debugger().send(stops, "quit")
        first = stops[0] if stops else None
        where = f" ({first.file}, line {first.line})" if first is not None else ""
        raise MeshUsageError(
            f"{name_ranks(sorted({s.rank for s in stops}))} stopped at a breakpoint{where}, and "
            "this notebook takes no input: they go on. Remove it, or have breakpoints skipped: %mesh set "
            "breakpoints skip"
        ) from None
    finally:
        session_of(mesh).num_prompts -= 1


class CellPrompt:
    """The prompt in the waiting cell of a notebook, shown when ranks stop at a breakpoint or ask for a
    line.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._interrupted: set[tuple[str, int]] = set()
        """Stops with an interrupt on its way: they aren't shown in a prompt again."""

    def __call__(self, session: Session) -> Exception | None:
        """Show the prompt; where nobody can type, let the ranks run on, and return the error to raise once
        the wait is over.
        """
        mesh = next((m for m in self._state.meshes.values() if transport_of(m) is session.transport), None)
        if mesh is None:
            return None
        try:
            answer_questions(mesh)
            if any((mesh.name, s.id) not in self._interrupted for s in mesh.debugger().stops()):
                talk(mesh)
        except (RequestFailed, TransportClosed):
            return None  # the mesh has ended meanwhile, which the waiting call reports
        except MeshUsageError as error:
            return error
        except KeyboardInterrupt:
            if kernel.is_meant():  # otherwise the ranks stay stopped, for the next client
                stops = mesh.debugger().stops()
                self._interrupted = {(mesh.name, s.id) for s in stops}
                mesh.interrupt(sorted({s.rank for s in stops}))
        return None


def break_(state: State, arguments: Namespace) -> None:
    """Set a breakpoint while code runs."""
    mesh = state.mesh(arguments.name)
    if arguments.clear:
        mesh.debugger().clear_breaks()
        print("no breakpoints are set from outside any more")
        return
    match = re.fullmatch(r"(.+):(\d+)", arguments.place or "")
    if match is None:
        given = f"; not {arguments.place!r}" if arguments.place else ""
        raise MeshUsageError(f"%mesh break: expected FILE:LINE, as in train.py:40 or In[3]:2{given}")
    words = arguments.condition
    if words and words[0] != "if":
        raise MeshUsageError(f"%mesh break: expected if EXPRESSION after the place, not {' '.join(words)!r}")
    found = mesh.debugger().break_at(match[1], int(match[2]), " ".join(words[1:]), arguments.ranks)
    by_text: dict[str, list[int]] = {}
    for rank, text in found.items():
        by_text.setdefault(text, []).append(rank)
    for text, ranks in by_text.items():
        print(f"[{format_ranks(ranks)}] {text}")
