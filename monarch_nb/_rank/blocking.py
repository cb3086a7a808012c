"""Determines from a thread's frames what blocks the thread: a lock, a queue, input, a socket, a call of an
actor.

Known functions of the standard library, torch and this package are found by module and name. What blocks in
C has no frame; but the instruction at which the innermost frame stands has a place in the source
(`co_positions`), so the expression that is being called can be read there: `lock.acquire()`, `input()`. Its
receiver is looked up without running any code of the user's.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import linecache
from collections.abc import Iterable, Sequence
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

from monarch_nb._frames.owner import is_users, module_of, users_index
from monarch_nb._protocol.hang import Blocked
from monarch_nb._protocol.states import WaitKind

_KNOWN: tuple[tuple[str, tuple[str, ...], WaitKind], ...] = (
    ("monarch_nb._rank.debugger", (), WaitKind.BREAKPOINT),
    ("monarch_nb.actor.future", ("get", "__await__"), WaitKind.CALL),
    ("monarch_nb.actor.channel", (), WaitKind.CHANNEL),
    ("monarch_nb._rank.command", (), WaitKind.PROCESS),
    ("monarch_nb._runtime.checkpoints", (), WaitKind.CHECKPOINT),
    ("torch.autograd.graph", ("_engine_run_backward",), WaitKind.BACKWARD),
    ("torch.utils.data.dataloader", ("__next__", "__iter__"), WaitKind.DATA),
    ("queue", ("get", "put", "join"), WaitKind.QUEUE),
    ("multiprocessing.queues", ("get", "put"), WaitKind.QUEUE),
    ("multiprocessing.connection", ("recv", "recv_bytes", "send", "poll", "wait", "accept"), WaitKind.RECV),
    ("multiprocessing.", ("join", "wait", "acquire"), WaitKind.PROCESS),
    ("subprocess", ("wait", "communicate", "run", "call", "check_output"), WaitKind.PROCESS),
    ("concurrent.futures.", ("result", "exception", "wait", "as_completed", "shutdown"), WaitKind.THREAD),
    ("threading", ("join", "_wait_for_tstate_lock"), WaitKind.THREAD),
    ("threading", ("wait", "wait_for", "acquire", "__enter__"), WaitKind.LOCK),
    ("socket", ("accept", "readinto", "create_connection"), WaitKind.RECV),
    ("ssl", ("read", "recv", "recv_into", "do_handshake"), WaitKind.RECV),
    ("getpass", (), WaitKind.INPUT),
    ("monarch_nb._rank.keyboard", ("ask_line", "ask_password"), WaitKind.QUESTION),
    ("selectors", ("select",), WaitKind.AWAIT),
)
_C_METHODS = {
    "acquire": WaitKind.LOCK,
    "recv": WaitKind.RECV,
    "recv_into": WaitKind.RECV,
    "recvfrom": WaitKind.RECV,
    "accept": WaitKind.RECV,
    "read": WaitKind.RECV,
    "readline": WaitKind.RECV,
    "readinto": WaitKind.RECV,
    "sleep": WaitKind.SLEEP,
    "usleep": WaitKind.SLEEP,
    "waitpid": WaitKind.PROCESS,
    "get": WaitKind.QUEUE,
    "select": WaitKind.RECV,
    "poll": WaitKind.RECV,
    "epoll": WaitKind.RECV,
}
_WRAPPER = "<locals>.wrapper"
_SPOKEN = {
    "_BaseDataLoaderIter.__next__": "DataLoader.__next__", "Bdb.trace_dispatch": "breakpoint()",
    "install.<locals>.ask_line": "input()", "install.<locals>.ask_password": "getpass()",
}  # fmt: skip


def what_blocks(frames: Sequence[FrameType]) -> Blocked | None:
    """Return the call that blocks a thread, or None if that isn't known. Frames: innermost first."""
    inner = list(_below_user(frames))
    for frame in reversed(inner):  # the outermost one, which the user has called, tells most
        kind = _known(frame)
        if kind:
            return Blocked(kind, _spoken(frame))
    innermost = frames[0] if frames else None
    if innermost is None or (innermost not in inner and not is_users(innermost)):
        return None
    return _in_c(innermost)


def doing(frames: Sequence[FrameType]) -> str:
    """Return the name of the function that the user's line has called: "DataLoader.__next__", "time.sleep";
    empty if none is being called. Frames: innermost first.
    """
    inner = [f for f in _below_user(frames) if not f.f_code.co_qualname.endswith(_WRAPPER)]
    if inner:
        return _spoken(inner[-1])
    found = _in_c(frames[0]) if frames and is_users(frames[0]) else None
    return found.text if found else ""


def _below_user(frames: Sequence[FrameType]) -> Iterable[FrameType]:
    """Return the frames that the user's innermost one has called; none if no frame is the user's."""
    return frames[: users_index(frames) or 0]


def _known(frame: FrameType) -> WaitKind:
    module, name = module_of(frame), frame.f_code.co_name
    for known, names, kind in _KNOWN:
        if (module == known or (known.endswith(".") and module.startswith(known))) and (
            not names or name in names
        ):
            return kind
    return WaitKind.UNKNOWN


def _spoken(frame: FrameType) -> str:
    name = frame.f_code.co_qualname
    return _SPOKEN.get(name, name)


# --- blocking functions in C


def _in_c(frame: FrameType) -> Blocked | None:
    expression = called(frame)
    if expression is None:
        return None
    is_call = isinstance(expression, ast.Call) and not _enters(frame)
    function = expression.func if isinstance(expression, ast.Call) and is_call else expression
    text = ast.unparse(function)[:80]
    if not is_call:  # `with lock:`
        kind = WaitKind.LOCK if _is_lock(look_up(frame, function)) else WaitKind.UNKNOWN
        return Blocked(kind, f"with {text}")
    if isinstance(function, ast.Name):
        return Blocked(_of_function(look_up(frame, function), function.id), f"{text}()")
    if isinstance(function, ast.Attribute):
        return Blocked(_of_method(look_up(frame, function.value), function.attr), f"{text}()")
    return Blocked(WaitKind.UNKNOWN, f"{text}()")


def _enters(frame: FrameType) -> bool:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("BEFORE")


def _of_function(value: Any, name: str) -> WaitKind:
    if value is builtins.open:
        return WaitKind.OPEN
    return (
        _C_METHODS.get(name, WaitKind.UNKNOWN)
        if name in ("sleep", "usleep", "select", "waitpid")
        else WaitKind.UNKNOWN
    )


def _of_method(receiver: Any, name: str) -> WaitKind:
    if name in ("read", "readline", "readlines") and getattr(receiver, "name", "") == "<stdin>":
        return WaitKind.INPUT
    if name == "acquire" and not _is_lock(receiver):
        return WaitKind.UNKNOWN
    if name == "get" and "ueue" not in type(receiver).__name__:
        return WaitKind.UNKNOWN
    return _C_METHODS.get(name, WaitKind.UNKNOWN)


def _is_lock(value: Any) -> bool:
    return type(value).__name__ in (
        "lock",
        "RLock",
        "_RLock",
        "Condition",
        "Semaphore",
        "BoundedSemaphore",
        "SemLock",
        "Lock",
    )


def called(frame: FrameType) -> ast.expr | None:
    """Return the expression that a frame evaluates at present, if that's a call or the entry of a `with`."""
    code, at = frame.f_code, frame.f_lasti
    if at < 0:
        return None
    name = dis.opname[code.co_code[at]]
    if not name.startswith(("CALL", "PRECALL", "BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL")):
        return None
    if name.startswith("BEFORE"):
        # the frame's own place is the whole statement; the instruction before it has loaded the context
        # manager
        at -= 2
    first, last, begin, end = next(islice(code.co_positions(), at // 2, None), (None, None, None, None))
    if first is None or last is None or begin is None or end is None:
        return None
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        return ast.parse(b"(" + b"".join(lines) + b"\n)", mode="eval").body
    except (SyntaxError, ValueError):
        return None


def look_up(frame: FrameType, expression: ast.expr) -> Any:
    """Return the value of a name or an attribute in a frame, without running any code; None if that isn't
    possible.
    """
    if isinstance(expression, ast.Name):
        for scope in (frame.f_locals, frame.f_globals, vars(builtins)):
            if expression.id in scope:
                return scope[expression.id]
        return None
    if isinstance(expression, ast.Attribute):
        owner = look_up(frame, expression.value)
        if isinstance(owner, ModuleType):
            return vars(owner).get(expression.attr)
        return None if owner is None else inspect.getattr_static(owner, expression.attr, None)
    return None
