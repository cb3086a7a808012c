"""`input()` and `getpass()` on a rank: the user who waits for the cell is asked, in the notebook."""

from __future__ import annotations

import builtins
import getpass
import sys
from typing import TYPE_CHECKING, Any

from monarch_nb._protocol.keyboard import AskNoMore, AskUser, Typed
from monarch_nb._transport import process_context
from monarch_nb._transport.context import current_origin
from monarch_nb._wire import address

if TYPE_CHECKING:
    from monarch_nb._transport.transport import Transport


def install(transport: Transport) -> None:
    """Replace `input` and `getpass`."""

    def ask_line(prompt: object = "", /) -> str:
        return _ask(transport, str(prompt), hidden=False)

    def ask_password(prompt: str = "Password: ", stream: Any = None, **_: Any) -> str:
        return _ask(transport, prompt, hidden=True)

    builtins.input = ask_line
    getpass.getpass = ask_password


def _ask(transport: Transport, prompt: str, *, hidden: bool) -> str:
    """Send a question, and wait for the answer; an interrupt ends that.

    Raises:
        StdinNotImplementedError: if nobody can type.
    """
    flush = getattr(sys.stdout, "flush", None)
    if flush is not None:
        flush()
    reply = transport.request(address.CONTROLLER, AskUser(prompt, hidden, current_origin()))
    try:
        transport.reader.wait(reply)
    finally:
        if not reply.ready:
            transport.forget(reply.ref)
            transport.ask(address.CONTROLLER, AskNoMore(reply.ref))
    answer = reply.read() if reply.body is not None else Typed(refused="the mesh has ended")
    if answer.refused:
        from IPython.core.error import StdinNotImplementedError

        what = "getpass()" if hidden else "input()"
        raise StdinNotImplementedError(
            f"{what} on rank {process_context.whereabouts().get('rank', '?')} needs somebody who "
            f"types, and {answer.refused}. Set the value in the notebook, and bring it here: %mesh "
            "push NAME"
        )
    return answer.text
