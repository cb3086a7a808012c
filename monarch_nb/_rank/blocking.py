"""Finds out what a thread is blocked on, from its frames: a lock, a queue, input, a socket, a call of an
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

_KNOWN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("monarch_nb._rank.debugger", (), "breakpoint"),
    ("monarch_nb.actor.future", ("get", "__await__"), "call"),
    ("monarch_nb.actor.channel", (), "channel"),
    ("monarch_nb._rank.command", (), "process"),
    ("monarch_nb._runtime.checkpoints", (), "checkpoint"),
    ("torch.autograd.graph", ("_engine_run_backward",), "backward"),
    ("torch.utils.data.dataloader", ("__next__", "__iter__"), "data"),
    ("queue", ("get", "put", "join"), "queue"),
    ("multiprocessing.queues", ("get", "put"), "queue"),
    ("multiprocessing.connection", ("recv", "recv_bytes", "send", "poll", "wait", "accept"), "recv"),
    ("multiprocessing.", ("join", "wait", "acquire"), "process"),
    ("subprocess", ("wait", "communicate", "run", "call", "check_output"), "process"),
    ("concurrent.futures.", ("result", "exception", "wait", "as_completed", "shutdown"), "thread"),
    ("threading", ("join", "_wait_for_tstate_lock"), "thread"),
    ("threading", ("wait", "wait_for", "acquire", "__enter__"), "lock"),
    ("socket", ("accept", "readinto", "create_connection"), "recv"),
    ("ssl", ("read", "recv", "recv_into", "do_handshake"), "recv"),
    ("getpass", (), "input"),
    ("monarch_nb._rank.keyboard", ("ask_line", "ask_password"), "question"),
    ("selectors", ("select",), "await"),
)
_C_METHODS = {
    "acquire": "lock",
    "recv": "recv",
    "recv_into": "recv",
    "recvfrom": "recv",
    "accept": "recv",
    "read": "recv",
    "readline": "recv",
    "readinto": "recv",
    "sleep": "sleep",
    "usleep": "sleep",
    "waitpid": "process",
    "get": "queue",
    "select": "recv",
    "poll": "recv",
    "epoll": "recv",
}
_WRAPPER = "<locals>.wrapper"
_SPOKEN = {
    "_BaseDataLoaderIter.__next__": "DataLoader.__next__", "Bdb.trace_dispatch": "breakpoint()",
    "install.<locals>.ask_line": "input()", "install.<locals>.ask_password": "getpass()",
}  # fmt: skip


def what_blocks(frames: Sequence[FrameType]) -> Blocked | None:
    """Return what a thread waits for, or None if that can't be told. Frames: innermost
    first.
    """
    inner = list(_below_user(frames))
    for frame in reversed(inner):  # the one that the user has called says most
        kind = _known(frame)
        if kind:
            return Blocked(kind, _spoken(frame))
    innermost = frames[0] if frames else None
    if innermost is None or (innermost not in inner and not is_users(innermost)):
        return None
    return _in_c(innermost)


def doing(frames: Sequence[FrameType]) -> str:
    """Return what the user's line has called: "DataLoader.__next__", "time.sleep"; empty if nothing is
    being called. Frames: innermost first.
    """
    inner = [f for f in _below_user(frames) if not f.f_code.co_qualname.endswith(_WRAPPER)]
    if inner:
        return _spoken(inner[-1])
    found = _in_c(frames[0]) if frames and is_users(frames[0]) else None
    return found.text if found else ""


def _below_user(frames: Sequence[FrameType]) -> Iterable[FrameType]:
    """Return the frames that the user's innermost one has called; none if no frame is the user's."""
    return frames[: users_index(frames) or 0]


def _known(frame: FrameType) -> str:
    module, name = module_of(frame), frame.f_code.co_name
    for known, names, kind in _KNOWN:
        if (module == known or (known.endswith(".") and module.startswith(known))) and (
            not names or name in names
        ):
            return kind
    return ""


def _spoken(frame: FrameType) -> str:
    name = frame.f_code.co_qualname
    return _SPOKEN.get(name, name)


# --- what is called in C


def _in_c(frame: FrameType) -> Blocked | None:
    expression = called(frame)
    if expression is None:
        return None
    is_call = isinstance(expression, ast.Call) and not _enters(frame)
    function = expression.func if isinstance(expression, ast.Call) and is_call else expression
    text = ast.unparse(function)[:80]
    if not is_call:  # `with lock:`
        kind = "lock" if _is_lock(look_up(frame, function)) else ""
        return Blocked(kind, f"with {text}")
    if isinstance(function, ast.Name):
        return Blocked(_of_function(look_up(frame, function), function.id), f"{text}()")
    if isinstance(function, ast.Attribute):
        return Blocked(_of_method(look_up(frame, function.value), function.attr), f"{text}()")
    return Blocked("", f"{text}()")


def _enters(frame: FrameType) -> bool:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("BEFORE")


def _of_function(value: Any, name: str) -> str:
    if value is builtins.open:
        return "open"
    return _C_METHODS.get(name, "") if name in ("sleep", "usleep", "select", "waitpid") else ""


def _of_method(receiver: Any, name: str) -> str:
    if name in ("read", "readline", "readlines") and getattr(receiver, "name", "") == "<stdin>":
        return "input"
    if name == "acquire" and not _is_lock(receiver):
        return ""
    if name == "get" and "ueue" not in type(receiver).__name__:
        return ""
    return _C_METHODS.get(name, "")


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
    """Return the expression that a frame evaluates just now, if that's a call or the entering of a `with`."""
    code, at = frame.f_code, frame.f_lasti
    if at < 0:
        return None
    name = dis.opname[code.co_code[at]]
    if not name.startswith(("CALL", "PRECALL", "BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL")):
        return None
    if name.startswith("BEFORE"):
        at -= 2  # its own place is the whole statement; the instruction before it has loaded what is entered
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
    """Return the value of a name or an attribute in a frame, without running any code; None if it can't be
    had so.
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
