"""Encodes and decodes failures for the caller: the exception, the place, and the traceback without frames of
this package.

What is described here is the user's: its `__str__`, `__repr__` or `__reduce__` may raise anything, and its
text or its stack may be enormous. Nothing of that gets out: a failure can always be told, and is never long.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from monarch_nb._frames.cells import with_cell_names
from monarch_nb._frames.owner import Owner, owner_of_file
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.failure import Failure
from monarch_nb._tracebacks import format_error, shown_frames
from monarch_nb._transport import process_context
from monarch_nb._wire import codec
from monarch_nb._wire.codec import Encoded

_TRACE: Any = BaseException.__dict__["__traceback__"]
_ORDER = "most recent call last"
MAX_MESSAGE = 10_000
MAX_NAME = 1_000
MAX_TRACEBACK = 60_000
MAX_FRAMES = 40
"""Deeper stacks are cut in the middle."""
_MAX_CAUSES = 10
MAX_EXCEPTION_BYTES = 1 << 20
"""Larger exceptions are described, and not sent."""


def strip_machinery(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame on that isn't this package's."""
    while trace is not None and owner_of_file(trace.tb_frame.f_code.co_filename) is Owner.PACKAGE:
        trace = trace.tb_next
    return trace


def describe(error: BaseException, **where: Any) -> Failure:
    """Return the description of an error, to be sent; `where` gives rank, host, actor and so on. Raises
    nothing: of an error that can't be described, the description has the class, and the reason.
    """
    try:
        return _describe(error, **where)
    except BaseException as trouble:
        return _undescribed(class_name(error, qualified=True), trouble)


def _describe(error: BaseException, *, rank: int | str | None = None, pid: int = 0, **where: Any) -> Failure:
    return Failure(
        type=class_name(error, qualified=True),
        message=message_of(error),
        traceback=traceback_of(error),
        exception=_pickled(error),
        when=time.time(),
        rank=rank if isinstance(rank, int) else None,
        pid=pid or os.getpid(),
        **where,
    )


def _undescribed(kind: str, trouble: BaseException) -> Failure:
    """Return the description of an error of which only the class is known, and the error raised instead."""
    where = process_context.whereabouts()
    rank = where.get("rank")
    reason = f"{class_name(trouble)}{_reason(trouble)}"
    return Failure(
        type=kind,
        message=f"<{kind.rpartition('.')[2]} object that can't be told of: {reason}>",
        when=time.time(),
        rank=rank if isinstance(rank, int) else None,
        host=where.get("host", ""),
        pid=os.getpid(),
    )


def class_name(value: object, *, qualified: bool = False) -> str:
    """Return the name of an object's class, whatever its metaclass says, as a plain text that can be encoded:
    a class may be given a name of any subclass of str.
    """
    name = type.__getattribute__(type(value), "__qualname__" if qualified else "__name__")
    return clipped(str.__str__(name), MAX_NAME, "")


def message_of(error: BaseException) -> str:
    """Return `str(error)`, shortened if it's long; if it raises, a description of that error."""
    text, trouble = _shown_by(str, error, "__str__")
    return trouble or clipped(text, MAX_MESSAGE, "on the rank, str(sys.last_value) has it all")


def repr_of(value: object) -> str:
    """Return `repr(value)`; if it raises, a description of that error."""
    text, trouble = _shown_by(repr, value, "__repr__")
    return trouble or text


def is_printable(error: BaseException) -> bool:
    """Say whether `str(error)` doesn't raise."""
    return not _shown_by(str, error, "__str__")[1]


def _shown_by(method: Callable[[Any], str], value: object, name: str) -> tuple[str, str]:
    """Return the text of `str` or `repr` of an object, and a note if that failed. The text is a plain str:
    that of a KeyError from a DataLoader's worker is of a class of torch's.
    """
    trace = trace_of(value) if isinstance(value, BaseException) else None
    try:
        return str.__str__(method(value)), ""
    except BaseException as error:
        what = "itself" if error is value else class_name(error)
        reason = "" if error is value else _reason(error)
        return "", f"<{class_name(value)} object: its {name} raised {what}{reason}>"
    finally:
        # an error that raises itself again would keep frames of this package
        if isinstance(value, BaseException):
            set_trace(value, trace)


def _reason(error: BaseException) -> str:
    try:
        return f": {clipped(str(error), 200, '')}"
    except BaseException:
        return ""


def trace_of(error: BaseException) -> TracebackType | None:
    """Return an error's traceback, whatever its class says."""
    found: TracebackType | None = _TRACE.__get__(error)
    return found


def set_trace(error: BaseException, trace: TracebackType | None) -> None:
    """Give an error another traceback."""
    _TRACE.__set__(error, trace)


def traceback_of(error: BaseException) -> str:
    """Return the traceback as text, without frames of this package; empty if no frame is left; shortened if
    it's long.
    """
    if isinstance(error, codec.CannotPickle) and not _has_users_frame(error.__cause__):
        return ""  # frames of the pickler add nothing; the message names the value
    whole = trace_of(error)
    trace, num_hidden = shortened(shown_frames(whole))
    try:
        text = format_error(error, trace)
    except BaseException:  # raised by its causes or notes; the frames are still right
        text = "".join(traceback.format_tb(trace)) + f"{class_name(error)}: {message_of(error)}\n"
    finally:
        set_trace(error, whole)
    return traceback_text(text, error, num_hidden)


def _has_users_frame(error: BaseException | None) -> bool:
    """Say whether code of the user's has raised an error, or one of its causes."""
    for _ in range(_MAX_CAUSES):
        if error is None:
            return False
        for frame, _ in traceback.walk_tb(trace_of(error)):
            if owner_of_file(frame.f_code.co_filename) in (Owner.USER, Owner.EXECUTED):
                return True
        error = error.__cause__
    return False


def traceback_text(text: str, error: BaseException, num_hidden: int = 0) -> str:
    """Return the text of a traceback, cut where it's long; it says how many frames aren't in it, and names
    cells by number.
    """
    message, _ = _shown_by(str, error, "__str__")
    if len(message) > MAX_MESSAGE:
        text = text.replace(message, message_of(error))
    if num_hidden:
        before, head, after = text.rpartition(_ORDER)
        text = f"{before}{head}; {num_hidden:,} frames left out in the middle{after}" if head else text
    return clipped(with_cell_names(text, r"Cell In[\1]"), MAX_TRACEBACK, "")


def shortened(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """Return a traceback of at most `MAX_FRAMES` frames, of a deep one its ends; and how many frames that
    leaves out.
    """
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    if len(frames) <= MAX_FRAMES:
        return (frames[0] if frames else None), 0
    result: TracebackType | None = None
    for frame in reversed(frames[: MAX_FRAMES // 2] + frames[-MAX_FRAMES // 2 :]):
        result = TracebackType(result, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return result, len(frames) - MAX_FRAMES


def clipped(text: str, limit: int, how_to_get_all: str) -> str:
    """Return an encodable text of at most about `limit` characters: of a longer one the ends, and the number
    left out.
    """
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()  # lone surrogates
    if len(text) <= limit:
        return text
    tail = limit // 4
    more = f"; {how_to_get_all}" if how_to_get_all else ""
    return f"{text[: limit - tail]}\n... {len(text) - limit:,} characters left out{more} ...\n{text[-tail:]}"


def _pickled(error: BaseException) -> bytes | None:
    """Return the exception itself in bytes, or None if it can't travel, couldn't be read back, or is
    large.
    """
    try:
        body = codec.encode(error, "exception")
        if body.buffers or len(body.payload) > MAX_EXCEPTION_BYTES:
            return None
        codec.decode(body.payload)
    except BaseException:
        return None
    return body.payload


def revive(data: bytes | None) -> BaseException | None:
    """Return the original exception, if it could travel."""
    if data is None:
        return None
    try:
        found = codec.decode(data)
    except Exception:
        return None
    return found if isinstance(found, BaseException) else None


def encode_failure(failure: Failure, enclose: Callable[[Failure], Any] = lambda failure: failure) -> Encoded:
    """Return the payload of an ERROR reply. Raises nothing: of a failure that can't be encoded, the payload
    has the type, and the reason.

    Args:
        enclose: makes the message that contains the failure; by default the failure is the message.
    """
    try:
        return Encoded(encode(enclose(failure)))
    except Exception as trouble:
        kind = failure.type if type(failure.type) is str else class_name(trouble, qualified=True)
        return Encoded(encode(enclose(replace(_undescribed(kind, trouble), dead=failure.dead))))


def without_details(failure: Failure) -> Failure:
    """Return a failure that is short enough to be sent where there's no shared memory left."""
    text = f"{failure.message[:MAX_NAME]} (its traceback is left out: there's no shared memory for it)"
    return replace(failure, message=text, traceback="", exception=None)
