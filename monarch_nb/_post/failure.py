"""A failure on its way to the caller: what was raised, where, and the traceback without our own frames."""

from __future__ import annotations

import os
import pickle
import time
import traceback
from types import TracebackType
from typing import Any

from monarch_nb._wire import codec
from monarch_nb._wire.codec import Encoded

_OWN_CODE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MAX_TEXT = 200_000


def strip_machinery(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame on that isn't this package's."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_CODE):
        trace = trace.tb_next
    return trace


def describe(error: BaseException, **where: Any) -> dict[str, Any]:
    """Return `error` as plain data; `where` says rank, host, actor and so on."""
    trace = strip_machinery(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))
    return {
        "type": type(error).__qualname__,
        "message": str(error),
        "traceback": text[-_MAX_TEXT:],
        "exception": _pickled(error),
        "when": time.time(),
        "pid": os.getpid(),
        **where,
    }


def _pickled(error: BaseException) -> bytes | None:
    """Return the exception itself in bytes, or None if it can't travel (or couldn't be read back)."""
    try:
        body = codec.encode(error, "exception")
        if body.buffers:
            return None
        codec.decode(body.payload)
    except Exception:
        return None
    return body.payload


def revive(failure: dict[str, Any]) -> BaseException | None:
    """Return the original exception, if it could travel."""
    data = failure.get("exception")
    if data is None:
        return None
    try:
        found = codec.decode(data)
    except Exception:
        return None
    return found if isinstance(found, BaseException) else None


def encode_failure(failure: dict[str, Any]) -> Encoded:
    """Return the payload of an ERROR reply."""
    return Encoded(pickle.dumps(failure, 5))
