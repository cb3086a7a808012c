"""Ctrl-C during the wait for a call: the ranks at work are interrupted, too.

The steps are those of a cell (`_host.controller.escalation`): a KeyboardInterrupt where the endpoint or
function runs; after `INTERRUPT_S`, collectives are aborted on all ranks of the call; after `ABORT_S` more the
wait ends and says which ranks hang, and where. Ctrl-C again takes the next step at once. In a kernel that is
being shut down, nobody is interrupted, and the call goes on.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import NoReturn

from monarch_nb._client import kernel
from monarch_nb._client import session as sessions
from monarch_nb._client.kernel import KernelShutDown
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.hang import Stacks
from monarch_nb._protocol.questions import InterruptCall
from monarch_nb._protocol.ranks import AbortCall
from monarch_nb._shape import name_ranks
from monarch_nb._stacks import innermost
from monarch_nb._transport.pending import Pending
from monarch_nb._wire import message as wire
from monarch_nb._wire.codec import Encoded
from monarch_nb.exceptions import MeshError

INTERRUPT_S = 3.0
ABORT_S = 10.0


class CallInterrupted(KeyboardInterrupt):
    """The error of a call that the user has interrupted. It lists the ranks that have ended the call, and
    those that hang, with their places and a command to type.
    """

    def _render_traceback_(self) -> list[str]:
        return f"KeyboardInterrupt: {self}".split("\n")


def send_interrupts(pending: Pending) -> tuple[int, ...]:
    """Interrupt the ranks that haven't answered `pending` yet; return their procs. Doesn't wait."""
    procs = pending.at_work()
    body = Encoded(encode(InterruptCall(pending.ref)))
    for proc in procs:
        pending.transport.post(proc, wire.CALL, body, name=InterruptCall.wire_name.encode())
    return procs


def interrupt_and_raise(pending: Pending, what: str) -> NoReturn:
    """Interrupt the ranks at work, wait for them, and raise.

    Raises:
        KeyboardInterrupt: saying which ranks were interrupted, and which hang.
        KernelShutDown: if this is a kernel, and it is being shut down.
    """
    __tracebackhide__ = True
    if not kernel.is_meant():
        raise shut_down(pending, what) from None
    procs = send_interrupts(pending)
    if not procs:
        raise KeyboardInterrupt
    if not _wait(pending, INTERRUPT_S):
        with suppress(MeshError, TimeoutError):
            sessions.of_transport(pending.transport).request(AbortCall(list(procs)))
        _wait(pending, ABORT_S)
    raise CallInterrupted(_report(pending, procs, what)) from None


def shut_down(pending: Pending, what: str) -> KernelShutDown:
    """Return the error that a wait for a call raises when the kernel is being shut down."""
    session = sessions.of_transport(pending.transport)
    call = f"the call of {what}" if what else "what it waited for"
    if session.private or session.connection is None:
        return KernelShutDown(f"this kernel is being shut down; {call}, and its mesh, end with it")
    name = session.connection.name
    return KernelShutDown(
        f"this kernel is being shut down; {call} goes on in mesh {name!r}. Come back: %mesh attach {name}"
    )


def _wait(pending: Pending, seconds: float) -> bool:
    with suppress(KeyboardInterrupt):  # pressed again: take the next step
        pending.transport.reader.wait(pending, time.monotonic() + seconds)
    return pending.ready


def _report(pending: Pending, procs: tuple[int, ...], what: str) -> str:
    left = pending.at_work()
    slots = [pending.procs.index(p) for p in procs if p not in left]
    of = f" of {what}" if what else ""
    lines = [f"{name_ranks(slots)}{of} {'was' if len(slots) == 1 else 'were'} interrupted"] if slots else []
    if left and not pending.ready:
        found = {}
        with suppress(MeshError, TimeoutError):
            found = sessions.of_transport(pending.transport).request(Stacks(list(left)))
        hanging = [pending.procs.index(p) for p in left]
        lines.append(
            f"{name_ranks(hanging)}{of} did not react and {'hangs' if len(hanging) == 1 else 'hang'}:"
        )
        lines += [f"  rank {rank} {innermost(each)}" for rank, each in sorted(found.items())]
        lines.append("next: %mesh stacks shows more; %mesh restart --ranks R starts ranks anew")
    return "\n".join(lines)
