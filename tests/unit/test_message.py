"""The wire format, pinned by golden bytes: a change here is a new version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.message import Answer


def test_golden_call() -> None:
    frame = wire.pack(
        wire.CALL, src=0x1_0000_0002, dst=3, flags=wire.EMPTY, slot=4, ref=5, target=6, origin=7,
        name=b"noop", context=b"gpus=2", payload=b"xyz",
    )  # fmt: skip
    assert frame.hex() == (
        "05010200" "04000000" "0200000001000000" "0300000000000000" "0500000000000000" "0600000000000000"
        "07000000" "0400" "0600" "0000" "0000" "6e6f6f70" "677075733d32" "78797a"
    )  # fmt: skip


def test_unpack_reverses_pack() -> None:
    table = wire.ENTRY.pack(wire.SHM, 9, 1234, 56, 4096, 100)
    frame = wire.pack(wire.REPLY, src=1, dst=2, ref=3, table=table, name=b"n", payload=b"body")
    message = wire.unpack(frame)
    assert (message.kind, message.src, message.dst, message.ref) == (wire.REPLY, 1, 2, 3)
    assert (message.name, message.table, bytes(message.payload)) == (b"n", table, b"body")


FIELDS = {
    "kind": st.integers(1, 9),
    "flags": st.integers(0, 31),
    "slot": st.integers(0, 2**32 - 1),
    "src": st.integers(0, 2**64 - 1),
    "dst": st.integers(0, 2**64 - 1),
    "ref": st.integers(0, 2**64 - 1),
    "target": st.integers(0, 2**64 - 1),
    "origin": st.integers(0, 2**32 - 1),
    "name": st.binary(max_size=20),
    "context": st.binary(max_size=20),
    "payload": st.binary(max_size=20),
}


@given(st.fixed_dictionaries(FIELDS))
def test_the_quick_ways_give_what_the_others_give(fields: dict[str, Any]) -> None:
    frame = wire.pack_plain(*(fields[name] for name in FIELDS))
    assert frame == wire.pack(fields.pop("kind"), **fields)
    message = wire.unpack(frame)
    quick = wire.plain_reply(frame)
    if message.kind == wire.REPLY and not message.name and not message.context:
        assert quick == (message.flags, message.slot, message.src, message.ref, message.origin)
    else:
        assert quick is None


@given(st.binary(max_size=60))
def test_what_is_no_reply_is_left_to_others(start: bytes) -> None:
    frame = bytes((wire.VERSION, wire.REPLY)) + start
    assert len(frame) >= wire.HEADER.size or wire.plain_reply(frame) is None
    assert wire.plain_reply(bytes((wire.VERSION + 1,)) + frame[1:]) is None
    with_buffers = wire.pack(wire.REPLY, src=1, dst=2, ref=3, table=bytes(wire.ENTRY.size))
    assert wire.plain_reply(with_buffers) is None


def test_golden_entry() -> None:
    assert wire.ENTRY.pack(wire.SHM, 2, 3, 4, 5, 6).hex() == (
        "01000000020000000300000000000000040000000000000005000000000000000600000000000000"
    )


def test_readdress_changes_slot_and_destination_only() -> None:
    frame = wire.pack(wire.CALL, src=1, dst=2, slot=3, name=b"f", payload=b"p")
    assert wire.readdress(frame, 7, 8) == wire.pack(wire.CALL, src=1, dst=8, slot=7, name=b"f", payload=b"p")


def test_golden_fanout() -> None:
    inner = wire.pack(wire.CALL, src=1, dst=0)
    frame = wire.pack_fanout(1, address.host_proc(2), [(10, 0), (11, 1)], inner)
    message = wire.unpack(frame)
    assert (
        message.payload.tobytes().hex().startswith("020000000a00000000000000000000000b0000000000000001000000")
    )
    assert wire.unpack_fanout(message) == ([(10, 0), (11, 1)], inner)


def test_combined_answers_round_trip() -> None:
    answers = [Answer(0, (0, 2), b"same"), Answer(wire.ERROR, (1,), b""), Answer(wire.EMPTY, (3, 4, 5), b"")]
    message = wire.unpack(wire.pack_combined(1, 2, 3, answers))
    assert wire.unpack_combined(message) == answers
    assert message.payload.tobytes()[:4].hex() == "03000000"


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "0 bytes is no message"),
        (b"\x01\x02", "2 bytes is no message"),
        (b"\x09" + wire.pack(wire.CALL, src=1, dst=2)[1:], "wire version 9; this process speaks 5"),
        (wire.pack(wire.CALL, src=1, dst=2, name=b"long name")[:-3], "is cut off"),
    ],
)
def test_what_is_no_message_is_refused(frame: bytes, says: str) -> None:
    with pytest.raises(wire.WireError, match=says):
        wire.unpack(frame)


def test_addresses() -> None:
    proc = address.proc_id(3, 7)
    assert (address.host_of(proc), address.local_of(proc)) == (3, 7)
    assert address.host_proc(3) == address.proc_id(3, 0)
    assert address.is_client(address.new_client_id())
    assert not address.is_client(proc)
    assert address.socket_path("/d", proc) == "/d/p7"


def test_golden_fanout_as_a_whole() -> None:
    frame = wire.pack_fanout(1, address.host_proc(2), [(10, 0), (11, 1)], b"\xaa\xbb")
    assert frame.hex() == (
        "05030000"
        "00000000"
        "0100000000000000"
        "0000000002000000"
        "0000000000000000"
        "0000000000000000"
        "00000000"
        "0000"
        "0000"
        "0000"
        "0000"
        "02000000"
        "0a00000000000000"
        "00000000"
        "0b00000000000000"
        "01000000"
        "aabb"
    )


def test_golden_combined_as_a_whole() -> None:
    frame = wire.pack_combined(
        1, 2, 3, [Answer(wire.ERROR, (4, 5), b"\xaa\xbb\xcc"), Answer(wire.EMPTY, (6,), b"")]
    )
    assert frame.hex() == (
        "05040000" "00000000" "0100000000000000" "0200000000000000" "0300000000000000" "0000000000000000"
        "00000000" "0000" "0000" "0000" "0000" "02000000"
        "0100" "02000000" "03000000" "04000000" "05000000" "aabbcc"
        "0200" "01000000" "00000000" "06000000"
    )  # fmt: skip


def test_golden_marks_of_combined_answers() -> None:
    frame = wire.pack_combined(1, 2, 3, [], [(7, 8), (9, 10)])
    assert frame[44:46].hex() == "1800"
    assert frame[52:].hex() == "07000000000000000800000009000000000000000a00000000000000"
    assert wire.combined_marks(wire.unpack(frame)) == [(7, 8), (9, 10)]
    cut = wire.pack(wire.COMBINED, src=1, dst=2, name=bytes(13))
    with pytest.raises(wire.WireError, match="13 bytes of marks, 12 each were expected"):
        wire.combined_marks(wire.unpack(cut))
    full = [(1 << 63, 1 << 31)] * wire.MAX_MARKS
    assert wire.combined_marks(wire.unpack(wire.pack_combined(1, 2, 3, [], full))) == full


def test_golden_table() -> None:
    table = wire.ENTRY.pack(wire.FRAME, 0, 0, 0, 0, 7) * 2
    frame = wire.pack(wire.REPLY, src=1, dst=2, table=table, payload=b"p")
    assert frame[44:52].hex() == "0000000002000000"
    assert frame[52:] == table + b"p"


def test_the_numbers_are_the_wire_format() -> None:
    kinds = ("CALL", "REPLY", "FANOUT", "COMBINED", "RELEASE", "CONTROL", "EVENT", "OUTPUT", "WAKE")
    assert [getattr(wire, kind) for kind in kinds] == list(range(1, 10))
    assert (wire.ERROR, wire.EMPTY, wire.KEEP, wire.END, wire.BULK) == (1, 2, 4, 8, 16)
    assert (wire.SHM, wire.FRAME, wire.VERSION) == (1, 2, 5)
    assert (wire.HEADER.size, wire.ENTRY.size) == (52, 40)


FANOUT = wire.pack_fanout(1, 2, [(10, 0), (11, 1)], wire.pack(wire.CALL, src=1, dst=0))
COMBINED = wire.pack_combined(1, 2, 3, [Answer(0, (1, 2), b"payload")])


@pytest.mark.parametrize("end", [52, 55, 60, 79, 80])
def test_a_fanout_that_is_cut_off_is_refused(end: int) -> None:
    with pytest.raises(wire.WireError, match=f"FANOUT of {end} bytes is cut off"):
        wire.unpack_fanout(wire.unpack(FANOUT[:end]))


@pytest.mark.parametrize("end", range(52, len(COMBINED)))
def test_combined_answers_that_are_cut_off_are_refused(end: int) -> None:
    with pytest.raises(wire.WireError, match=f"COMBINED of {end} bytes is cut off"):
        wire.unpack_combined(wire.unpack(COMBINED[:end]))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(frame: bytes) -> None:
    head = wire.pack(wire.CALL, src=1, dst=2)
    for data in (frame, head + frame, head[:44] + frame):
        try:
            message = wire.unpack(data)
            wire.unpack_combined(message)
            wire.combined_marks(message)
            wire.unpack_fanout(message)
        except wire.WireError:
            continue
