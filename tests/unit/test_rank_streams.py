"""What a rank's streams write into their pipe: each line at once, marks only where another cell's text
stands.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from monarch_nb._wire.marks import BURST_MEMORY, TEXT, Parser, Piece

PROGRAM = """
import contextvars, sys
from monarch_nb._transport.context import CallContext, call_context
from monarch_nb._rank import streams

pipe = streams.install("TOKEN")

def in_name_of(origin, function):
    def run():
        call_context.set(CallContext(origin))
        function()
    contextvars.copy_context().run(run)

{body}
sys.stdout.flush()
"""


def pieces(body: str) -> list[Piece]:
    """Run a program with a rank's streams; return what its host process would see, neighbours of one kind
    as one. Nobody reads the memory that is there for many lines (`test_bursts` does).
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)], stdout=subprocess.PIPE, check=True
    )
    found: list[Piece] = []
    for piece in Parser("TOKEN", "stdout").feed(done.stdout):
        if found and piece.kind == TEXT and found[-1][:3] == piece[:3]:
            piece = piece._replace(data=found.pop().data + piece.data)
        if piece.kind != BURST_MEMORY:
            found.append(piece)
    return found


def test_text_of_several_cells_keeps_its_cell() -> None:
    body = """
pipe.begin_origin(4)
in_name_of(4, lambda: print("a"))
in_name_of(7, lambda: print("b"))
in_name_of(7, lambda: print("c", file=sys.stderr))
pipe.begin_origin(5)
in_name_of(7, lambda: print("d"))
in_name_of(5, lambda: print("e"))
"""
    assert [(p.origin, p.stream, p.data) for p in pieces(body)] == [
        (0, "stdout", b"a\n"),  # the host process is told of cells by the controller, not by a mark
        (7, "stdout", b"b\n"),
        (7, "stderr", b"c\n"),
        (7, "stdout", b"d\n"),
        (5, "stdout", b"e\n"),
    ]


def test_what_is_held_belongs_to_whoever_wrote_it() -> None:
    body = """
in_name_of(7, lambda: print("half", end=""))
in_name_of(8, lambda: print("whole"))
in_name_of(7, lambda: print("rest"))
"""
    assert [(p.origin, p.data) for p in pieces(body)] == [(7, b"half"), (8, b"whole\n"), (7, b"rest\n")]


def test_more_cells_than_marks_are_kept_of() -> None:
    body = """
for origin in [*range(1, 200), 1]:
    in_name_of(origin, lambda: print(origin))
"""
    assert [(p.origin, p.data) for p in pieces(body)] == [(n, b"%d\n" % n) for n in [*range(1, 200), 1]]


def test_a_crash_finds_each_line_written() -> None:
    body = """
import os
for i in range(3):
    print("line", i)
print("half", end="")
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)], stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == -9
    assert done.stdout == b"line 0\nline 1\nline 2\n"


def test_a_pipe_that_takes_only_a_part_is_written_on() -> None:
    """Somebody has made descriptor 1 non-blocking, and nobody reads for a while."""
    body = """
import os, threading
os.set_blocking(1, False)
print("x" * (1 << 20))
"""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(body=body)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as out:
        first = os.read(out.fileno(), 1)
        rest = out.read()
    assert process.wait(30) == 0
    assert first + rest == b"x" * (1 << 20) + b"\n"


def test_only_text_can_be_written() -> None:
    body = """
try:
    sys.stdout.write(b"bytes")
except TypeError as error:
    print(error)
"""
    assert pieces(body) == [Piece(TEXT, 0, "stdout", b"write() argument must be str, not bytes\n")]


@pytest.mark.parametrize("text", ["a\rb", "ü\n", "\ud800\n"])
def test_odd_text(text: str) -> None:
    body = f"sys.stdout.write({text!r})"
    assert b"".join(p.data for p in pieces(body)) == text.encode("utf-8", "replace")
