"""Collects what this rank's user threads wait for: the facts from which `monarch_nb._why` determines the rank
that causes a hang.

Found by looking at frames when asked, in the reading thread, so it costs nothing when nobody asks: no
collective is patched or recorded. A rank whose interpreter's lock is held can't answer; its host process
looks at its stacks then (`_host/controller/stack_requests`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from monarch_nb._frames.cells import cell_number
from monarch_nb._frames.owner import frames_from, is_users, module_of, users_index
from monarch_nb._protocol.hang import AwaitedCall, HangFacts, ThreadFacts
from monarch_nb._protocol.work import Work
from monarch_nb._rank import operations
from monarch_nb._rank.blocking import doing, what_blocks
from monarch_nb._runtime.awaiting import frames_of
from monarch_nb._sources import source_line
from monarch_nb._wire.message import Message

if TYPE_CHECKING:
    from monarch_nb._rank.main import Rank
    from monarch_nb._runtime.actors import ActorRunner
    from monarch_nb._runtime.inbox import Inbox

_FUTURE = "monarch_nb.actor.future"
_ACTORS = "monarch_nb._runtime.actors"
MAX_DEPTH = 200


def look_at_threads(rank: Rank) -> HangFacts:
    """Return the activities of all busy threads, and the progress of process groups."""
    threads = (
        *_main(rank),
        *(each for runner in list(rank.actors.actors.values()) for each in _of_actor(runner)),
    )
    return HangFacts(threads, operations.groups(), operations.own_rank(), operations.pending_on_device())


def _main(rank: Rank) -> list[ThreadFacts]:
    """Return the activity of the main thread: a cell or a function."""
    worker = rank.worker
    message = worker.current
    if message is None:
        return []
    what = "cell" if message.name == Work.RUN.encode() else "function"
    ident = threading.main_thread().ident or 0
    return [_thread(what, 0, ident, [message], worker.inbox, _frames(ident), message.origin)]


def _of_actor(runner: ActorRunner) -> list[ThreadFacts]:
    """Return the activity of an actor: one entry, or one for each call that awaits."""
    ident = runner.thread.ident or 0
    tasks = runner.tasks()
    if tasks:
        return [_awaiting(runner, ident, key, frames_of(task)) for key, task in tasks.items()]
    message = runner.current
    if message is None:
        frames = _frames(ident)
        is_being_made = any(f.f_code.co_name == "_construct" and module_of(f) == _ACTORS for f in frames)
        return (
            [_thread(f"{runner.name}.__init__", runner.actor_id, ident, [], runner.inbox, frames, 0)]
            if is_being_made
            else []
        )
    label = f"{runner.name}.{message.name.decode()}"
    return [_thread(label, runner.actor_id, ident, [message], runner.inbox, _frames(ident), message.origin)]


def _awaiting(runner: ActorRunner, ident: int, key: tuple[int, int], frames: list[FrameType]) -> ThreadFacts:
    """Return the activity of a call of an async actor. Frames: outermost first."""
    method = next((f.f_code.co_name for f in frames if is_users(f)), "")
    return _thread(
        f"{runner.name}.{method}".rstrip("."), runner.actor_id, ident, [key], runner.inbox, frames[::-1], 0
    )


def _thread(
    label: str,
    actor: int,
    ident: int,
    serves: Sequence[Message | tuple[int, int]],
    inbox: Inbox[Message],
    frames: list[FrameType],
    origin: int,
) -> ThreadFacts:
    user = users_index(frames)
    place = _NOWHERE if user is None else _place(frames[user])
    return ThreadFacts(
        label,
        actor,
        origin,
        serves=tuple(_key(each) for each in serves),
        queued=_queued(inbox),
        **place._asdict(),
        doing=doing(frames),
        operation=operations.find(frames),
        blocked=what_blocks(frames),
        calls=tuple(call for frame in frames if (call := _call(frame)) is not None),
        at=tuple((f.f_code.co_name, f.f_lasti) for f in frames if is_users(f)),
        cpu_s=_cpu_s(ident),
    )


def _key(each: Message | tuple[int, int]) -> tuple[int, int]:
    return (each.src, each.ref) if isinstance(each, Message) else each


def _queued(inbox: Inbox[Message]) -> tuple[tuple[int, int], ...]:
    for _ in range(3):
        with suppress(RuntimeError):  # the owner has taken an item meanwhile
            return tuple((m.src, m.ref) for m in inbox.waiting())
    return ()


def _frames(ident: int) -> list[FrameType]:
    """Return a thread's frames, innermost first."""
    return frames_from(sys._current_frames().get(ident), MAX_DEPTH)


class _Place(NamedTuple):
    """A line of the user's code."""

    cell: int | None = None
    file: str = ""
    line: int = 0
    function: str = ""
    source: str = ""


_NOWHERE = _Place()


def _place(frame: FrameType) -> _Place:
    file = frame.f_code.co_filename
    return _Place(
        cell_number(file), file, frame.f_lineno, frame.f_code.co_name, source_line(file, frame.f_lineno)
    )


def _call(frame: FrameType) -> AwaitedCall | None:
    """Return the call whose answer a frame waits for."""
    code = frame.f_code
    if module_of(frame) != _FUTURE or code.co_name not in ("get", "__await__"):
        return None
    future = frame.f_locals.get("self")
    pending = getattr(future, "_pending", None)
    if pending is None or pending.ready:
        return None
    what, transport = getattr(future, "_what", ""), pending.transport
    if transport.is_guest:  # procs of another mesh: the numbers mean other processes here
        return AwaitedCall(f"{what} in {transport.mesh}", 0, ())
    return AwaitedCall(what, pending.ref, tuple(pending.at_work()))


def _cpu_s(ident: int) -> float:
    """Return the processor time that a thread has taken."""
    with suppress(OSError):
        return time.clock_gettime(time.pthread_getcpuclockid(ident))
    return 0.0
