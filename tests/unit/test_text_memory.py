"""Memory that a rank's text lies in: it comes out as it went in, however writer and reader take turns."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._wire import text_memory
from monarch_nb._wire.text_memory import HEADER_BYTES, MOST_BYTES, READ_BYTES, TextMemory, TextReader


class Pair:
    """Both ends of one memory."""

    def __init__(self) -> None:
        self.memory = TextMemory()
        self.write = self.memory.text_writer()
        self.reader = TextReader(self.memory.fd)

    def lines(self) -> str:
        return b"".join(iter(self.reader.lines, b"")).decode()

    def text(self) -> str:
        end = self.memory.tell()
        return b"".join(iter(lambda: self.reader.text(end), b"")).decode()

    def used_bytes(self) -> int:
        return os.fstat(self.memory.fd).st_blocks * 512


@pytest.fixture(params=["bytes", "mmap"])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Written to by a `BytesIO`, and by the slower way where that can't be had."""
    if request.param == "mmap":
        monkeypatch.setattr(text_memory, "open_bytes", lambda _fd, _size: None)
    made = Pair()
    assert isinstance(made.memory._file, io.BytesIO) is (request.param == "bytes")
    yield made
    made.reader.close()


@given(st.lists(st.one_of(st.text(max_size=50), st.sampled_from(["\n", "x" * 5000, None])), max_size=60))
def test_text_comes_out_as_it_went_in(steps: list[str | None]) -> None:
    """None: what is there is read."""
    pair = Pair()
    wrote, read = "", ""
    for step in steps:
        if step is not None:
            pair.write(step)
            wrote += step.encode("utf-8", "replace").decode()
            continue
        found = pair.lines()
        assert found == "" or found[-1] in "\n\r"
        read += found
        shown = wrote.split("\0")[0]  # where it has NULs, only the end of it says so
        last = max(shown.rfind("\n"), shown.rfind("\r")) + 1
        assert len(read) >= last if "\0" not in wrote else wrote.startswith(read)
    assert read + pair.text() == wrote
    pair.reader.close()


def test_lines_longer_than_one_read(pair: Pair) -> None:
    pair.write("x" * 3 * READ_BYTES)
    assert len(pair.lines()) == 3 * READ_BYTES
    pair.write("y\n")
    assert pair.lines() == "y\n"


def test_what_was_read_takes_no_memory(pair: Pair) -> None:
    for _ in range(20):
        pair.write("line\n" * 100_000)
        pair.lines()
        assert pair.memory.has_room()
    assert pair.used_bytes() < 1 << 16


def test_a_reader_that_is_behind_leaves_no_room(pair: Pair) -> None:
    while pair.memory.has_room():
        pair.write("line\n" * 100_000)
    assert MOST_BYTES <= pair.used_bytes() < MOST_BYTES + (1 << 20)
    assert not pair.memory.rewind()
    pair.lines()
    assert pair.memory.has_room()


def test_memory_is_used_from_the_beginning_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_memory, "SIZE_BYTES", 1 << 20)
    pair.write("line\n" * 200_000)
    pair.lines()
    assert not pair.memory.has_room()
    monkeypatch.undo()
    assert pair.memory.rewind() and pair.memory.tell() == HEADER_BYTES
    assert pair.memory.has_room() and pair.memory.ends_with_line
    pair.reader.at = HEADER_BYTES  # as a mark tells it
    pair.write("new\n")
    assert pair.lines() == "new\n"


def test_what_a_writer_that_died_has_left(pair: Pair) -> None:
    pair.write("line\n" * 100_000 + "half")
    assert b"".join(iter(pair.reader.rest, b"")).decode() == "line\n" * 100_000 + "half"


def test_unfinished_lines_are_known(pair: Pair) -> None:
    assert pair.memory.ends_with_line
    for text, ended in (("a", False), ("\n", True), ("10%\r", True), ("b", False)):
        pair.write(text)
        assert pair.memory.ends_with_line is ended


@pytest.mark.parametrize("before", ["", "line\n", "line\n" * 70_000])
@pytest.mark.parametrize("num_nuls", [0, 3])
def test_a_text_longer_than_the_memory(monkeypatch: pytest.MonkeyPatch, before: str, num_nuls: int) -> None:
    monkeypatch.setattr(text_memory, "SIZE_BYTES", 1 << 26)  # as large that `malloc` maps it
    pair = Pair()
    pair.write(before)
    read = pair.lines()
    assert not pair.memory.has_overflowed
    pair.write("behind\n")
    long = "\0" * num_nuls + "x" * (1 << 26)
    pair.write(long)
    assert pair.memory.has_overflowed and not pair.memory.has_room() and not pair.memory.ends_with_line
    end, rest = pair.memory.split_overflow()
    read += b"".join(iter(lambda: pair.reader.text(end), b"")).decode() + rest.decode()
    assert read == before + "behind\n" + long
    pair.reader.close()


@pytest.mark.parametrize("how", ["lines", "text", "rest"])
def test_parts_of_much_text_end_with_lines(pair: Pair, how: str) -> None:
    """A line of two parts would be counted twice, and a secret in it not be found."""
    text = "".join(f"line {i}\n" for i in range(100_000))
    pair.write(text)
    end = pair.memory.tell()
    read = {"lines": pair.reader.lines, "text": lambda: pair.reader.text(end), "rest": pair.reader.rest}[how]
    parts = list(iter(read, b""))
    assert len(parts) > 3 and all(part.endswith(b"\n") for part in parts)
    assert b"".join(parts).decode() == text
