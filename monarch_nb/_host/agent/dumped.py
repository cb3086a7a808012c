"""Converts stacks written by faulthandler and py-spy into the format of `traceback`: outermost frame first,
with the source line.
"""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from monarch_nb._frames.owner import is_module_elsewhere

MAIN = "MainThread"
_THREAD = re.compile(r"(?m)^(?:Current thread|Thread) 0x([0-9a-f]+)[^\n]*\n")
_FRAME = re.compile(r'  File "([^"]*)", line (\d+) in (.+)')
_ACTOR = "monarch_nb._runtime.actors"
_READER = "monarch_nb._transport.reader"


class Frame(NamedTuple):
    """One frame of a stack."""

    file: str
    line: int
    function: str


def from_faulthandler(text: str, main_ident: int) -> dict[str, str]:
    """Return the stacks by thread name; faulthandler writes no names, so threads other than the main one are
    named by the functions that they run.

    Example:
        >>> dump = 'Thread 0x0000000000000007 (most recent call first):\\n'
        >>> dump += '  File "a.py", line 2 in f\\n  File "a.py", line 9 in <module>\\n'
        >>> print(from_faulthandler(dump, 7)["MainThread"], end="")
          File "a.py", line 9, in <module>
          File "a.py", line 2, in f
    """
    found: dict[str, str] = {}
    for ident, frames in _threads(text):
        name = MAIN if ident == main_ident else _thread_name(frames, len(found))
        found[name] = format_frames(frames)
    return found


def main_frames(text: str, main_ident: int) -> list[Frame]:
    """Return the main thread's frames, innermost first; none if it isn't in the dump."""
    return next((frames for ident, frames in _threads(text) if ident == main_ident), [])


def is_whole(text: str, main_ident: int) -> bool:
    """Say whether the dump has reached the main thread, which faulthandler writes last."""
    idents = _THREAD.findall(text)
    return any(int(i, 16) == main_ident for i in idents) and text.endswith("\n")


def from_py_spy(data: bytes) -> dict[str, str]:
    """Return the stacks by thread name from what `py-spy dump --json` prints.

    Raises:
        ValueError: if it's something else.
    """
    found: dict[str, str] = {}
    for thread in json.loads(data):
        frames = [Frame(f["filename"], f["line"], f["name"]) for f in thread["frames"]]
        name = thread["thread_name"] or f"thread-{thread['os_thread_id']}"
        found[_free_name(name, found)] = format_frames(frames)
    return found


def format_frames(frames: Sequence[Frame]) -> str:
    """Return frames, innermost first, as `traceback` prints them. Frames of C code have no line."""
    return "".join(_format(frame) for frame in reversed(frames))


def _threads(text: str) -> Iterator[tuple[int, list[Frame]]]:
    """Yield the ident and the frames, innermost first, of each thread of faulthandler's dump."""
    parts = _THREAD.split(text)
    for ident, body in zip(parts[1::2], parts[2::2], strict=True):
        found = _FRAME.findall(body)
        yield int(ident, 16), [Frame(file, int(line), function) for file, line, function in found]


def _format(frame: Frame) -> str:
    if not frame.line:
        return f'  File "{frame.file}", in {frame.function}\n'
    source = "" if frame.file.startswith("<") else linecache.getline(frame.file, frame.line).strip()
    head = f'  File "{frame.file}", line {frame.line}, in {frame.function}\n'
    return head + (f"    {source}\n" if source else "")


def _thread_name(frames: Sequence[Frame], number: int) -> str:
    if any(is_module_elsewhere(f.file, _ACTOR) for f in frames):
        return f"actor-thread-{number}"
    if any(is_module_elsewhere(f.file, _READER) and f.function == "_keep" for f in frames):
        return "monarch_nb-reader"
    return f"thread-{number}"


def _free_name(name: str, taken: dict[str, Any]) -> str:
    return name if name not in taken else f"{name} ({len(taken)})"
