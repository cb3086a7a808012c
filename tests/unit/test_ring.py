"""The ring buffer that a rank and its host process share: bytes come out as they went in, in whatever order
the two write and read.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._wire import ring
from monarch_nb._wire.ring import HEAD, RING_BYTES, RingError, RingReader, RingWriter


def write(writer: RingWriter, data: bytes) -> bool:
    """Write as those do who write often."""
    if writer.tell() + len(data) > writer.limit:
        return writer.append(data)
    writer.write(data)
    writer.words[HEAD] = writer.base + writer.tell()
    return True


def pair() -> tuple[RingWriter, RingReader]:
    writer = RingWriter()
    reader = RingReader(writer.fd)
    os.close(writer.fd)
    return writer, reader


@given(st.lists(st.one_of(st.integers(1, 9000), st.none()), max_size=80))
def test_bytes_come_out_as_they_went_in(steps: list[int | None]) -> None:
    """A number: so many bytes are written; None: what is there is read."""
    writer, reader = pair()
    wrote, read = b"", b""
    for i, step in enumerate(steps):
        if step is None:
            read += reader.read(reader.num_written)
            continue
        data = bytes([i % 251]) * step
        fits = len(wrote) - len(read) + step <= RING_BYTES
        assert write(writer, data) is fits
        wrote += data if fits else b""
    assert read + reader.read(reader.num_written) == wrote
    reader.close()


def test_what_was_read_makes_room_again_and_again() -> None:
    writer, reader = pair()
    for i in range(5):
        size = RING_BYTES - i
        assert write(writer, b"x" * size)
        assert not write(writer, b"x" * (i + 1))
        assert len(reader.read(reader.num_written)) == size
    reader.close()


def test_what_was_read_is_not_read_again() -> None:
    writer, reader = pair()
    write(writer, b"one")
    write(writer, b"two")
    assert reader.read(3) == b"one"
    assert reader.read(3) == b""
    assert reader.read(6) == b"two"
    reader.close()


def test_a_number_that_cannot_be_is_survived() -> None:
    """The memory is the rank's, too: whatever it writes there harms nobody else."""
    writer, reader = pair()
    writer.words[HEAD] = 1 << 62
    assert reader.read(reader.num_written) == b""
    writer.words[HEAD] = 5
    assert reader.read(reader.num_written) == b""
    reader.close()


@pytest.mark.parametrize("sealed", [True, False])
def test_other_memory_is_refused(sealed: bool) -> None:
    fd = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 100 if sealed else ring._END)
    if sealed:
        ring.fcntl.fcntl(fd, ring.fcntl.F_ADD_SEALS, ring._SEALS)
    with pytest.raises(RingError):
        RingReader(fd)
    os.close(fd)
