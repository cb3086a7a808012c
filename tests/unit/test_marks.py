"""Marks in output: any cut of the stream gives the same pieces."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._protocol.shown import Shown
from monarch_nb._wire import marks
from monarch_nb._wire.marks import DISPLAY, TEXT, Parser, Piece, display_mark, mark

TOKEN = "abc123"
texts = st.binary(max_size=30).map(lambda b: b.replace(b"\x1b]777;abc123;", b""))
events = st.lists(
    st.tuples(st.sampled_from(["text", "switch", "display"]), texts, st.integers(0, 9)), max_size=12
)


def stream_of(parts: list[tuple[str, bytes, int]]) -> bytes:
    data = b""
    for kind, text, number in parts:
        if kind == "text":
            data += text
        elif kind == "switch":
            data += mark(TOKEN, TEXT, number, "stderr" if number % 2 else "stdout")
        else:
            data += display_mark(TOKEN, number, Shown({"n": number}))
    return data


def joined(pieces: list[Piece]) -> list[Piece]:
    result = []
    for _, group in groupby(pieces, key=lambda p: (p.kind, p.origin, p.stream) if p.kind == TEXT else id(p)):
        first, *rest = group
        result.append(first._replace(data=b"".join([first.data, *(p.data for p in rest)])))
    return result


@given(events, st.lists(st.integers(1, 40), max_size=30))
def test_cuts_do_not_matter(parts: list[tuple[str, bytes, int]], cuts: list[int]) -> None:
    data = stream_of(parts) + b"\n"
    whole = list(Parser(TOKEN, "stdout").feed(data))
    parser, pieces, at = Parser(TOKEN, "stdout"), [], 0
    for cut in [*cuts, len(data)]:
        pieces += parser.feed(data[at : at + cut])
        at += cut
    pieces += parser.feed(data[at:])
    assert joined(pieces) == joined(whole)


def test_pieces_have_origin_and_stream() -> None:
    data = b"a" + mark(TOKEN, TEXT, 5, "stderr") + b"b" + display_mark(TOKEN, 6, Shown({"x": 1}))
    pieces = list(Parser(TOKEN, "stdout").feed(data))
    assert pieces[:2] == [
        Piece(TEXT, 0, "stdout", b"a"), Piece(TEXT, 5, "stderr", b"b"),
    ]  # fmt: skip
    assert (pieces[2].kind, pieces[2].origin, Shown.of_json(pieces[2].data)) == (DISPLAY, 6, Shown({"x": 1}))


def test_a_garbled_display_is_said() -> None:
    broken = b"\x1b]777;abc123;d;1;!!not base64!!\x07"
    assert b"garbled" in next(iter(Parser(TOKEN, "stdout").feed(broken))).data


def test_marks_of_others_are_text() -> None:
    foreign = mark("other", TEXT, 1)
    assert list(Parser(TOKEN, "stdout").feed(foreign)) == [Piece(TEXT, 0, "stdout", foreign)]


def test_a_display_garbled_beyond_ascii_is_said_and_what_follows_is_kept() -> None:
    broken = "\x1b]777;abc123;d;1;\u00e9\x07after".encode()
    pieces = list(Parser(TOKEN, "stdout").feed(broken))
    assert [b"garbled" in p.data for p in pieces] == [True, False]
    assert pieces[1] == Piece(TEXT, 0, "stdout", b"after")


@pytest.mark.parametrize("body", [b"t", b"t;1", b"t;one;", b"\xff;1;", b"?;1;", b""])
def test_a_mark_that_makes_no_sense_is_dropped_alone(body: bytes) -> None:
    pieces = list(Parser(TOKEN, "stdout").feed(b"before\x1b]777;abc123;" + body + b"\x07after"))
    assert b"".join(p.data for p in pieces) == b"beforeafter"
    assert {(p.kind, p.origin, p.stream) for p in pieces} == {(TEXT, 0, "stdout")}


def test_a_mark_without_end_is_text_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "_MAX_HELD_BYTES", 40)
    parser = Parser(TOKEN, "stdout")
    start, text = b"\x1b]777;abc123;", b"0123456789" * 4
    assert list(parser.feed(start)) == []
    assert list(parser.feed(text)) == [Piece(TEXT, 0, "stdout", text)]
    assert list(parser.feed(b"next")) == [Piece(TEXT, 0, "stdout", b"next")]


@given(st.binary(max_size=60), st.integers(0, 60))
def test_bytes_without_marks_pass_unchanged(data: bytes, cut: int) -> None:
    parser = Parser(TOKEN, "stderr")
    pieces = [*parser.feed(data[:cut]), *parser.feed(data[cut:]), *parser.feed(b"\n")]
    assert b"".join(p.data for p in pieces) == data + b"\n"


def test_what_has_no_mark_belongs_to_the_cell_that_was_begun() -> None:
    parser = Parser(TOKEN, "stderr")
    assert list(parser.feed(b"before" + mark(TOKEN, TEXT, 3, "stdout"))) == [
        Piece(TEXT, 0, "stderr", b"before")
    ]
    parser.begin_origin(7)
    assert list(parser.feed(b"plain")) == [Piece(TEXT, 7, "stderr", b"plain")]
