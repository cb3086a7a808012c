"""Malformed frames and bodies, drawn at random: noise, headers that lie, fields of wrong types."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from monarch_nb._wire import message as wire

KINDS = (
    wire.CALL,
    wire.REPLY,
    wire.FANOUT,
    wire.COMBINED,
    wire.RELEASE,
    wire.CONTROL,
    wire.EVENT,
    wire.OUTPUT,
    wire.WAKE,
    0,
    10,
    255,
)
NAMES = (
    b"",
    b"no_such_thing",
    b"__class__",
    b"__init__",
    b"\xff\xfe",
    b"x" * 60_000,
    b"snapshot",
    b"run_cell",
    b"status",
    b"adopt",
    b"spawn",
    b"interrupt",
    b"watch_status",
)
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    10**30,
    "",
    "x" * 300,
    "🎉",
    "../../etc/passwd",
    "\x00",
    [],
    [[]],
    {},
    {"": None},
    [1, "2", None],
    {"ranks": "all"},
    {"group": 5},
    {"sizes": [["gpus", -1]]},
]


def frame(rng: Random, dst: int) -> list[bytes]:
    """Return the frames of one message that makes no sense."""
    kind = rng.randrange(5)
    if kind == 0:
        return [rng.randbytes(rng.randrange(120)) for _ in range(rng.randrange(1, 4))]
    if kind == 1:  # a header whose lengths lie
        header = wire.HEADER.pack(
            wire.VERSION,
            rng.choice(KINDS),
            rng.randrange(256),
            rng.randrange(1 << 32),
            rng.randrange(1 << 40),
            dst,
            rng.randrange(1 << 20),
            rng.randrange(100),
            0,
            rng.randrange(1 << 16),
            rng.randrange(1 << 16),
            rng.randrange(1 << 16),
            0,
        )
        return [header + rng.randbytes(rng.randrange(200))]
    if kind == 2:  # buffers that aren't there
        entry = wire.ENTRY.pack(
            rng.randrange(4),
            rng.randrange(1 << 16),
            rng.randrange(1 << 22),
            rng.getrandbits(48),
            rng.getrandbits(40),
            rng.getrandbits(50),
        )
        return [packed(rng, dst, table=entry * rng.randrange(1, 5)), *([b"x"] * rng.randrange(3))]
    if kind == 3:
        whole = bytearray(packed(rng, dst, payload=absurd_json(rng).encode()))
        for _ in range(rng.randrange(1, 8)):
            whole[rng.randrange(1, len(whole))] ^= 1 << rng.randrange(8)
        whole[wire.DST_OFFSET : wire.DST_OFFSET + 8] = dst.to_bytes(8, "little")
        return [bytes(whole)]
    return [packed(rng, dst, payload=absurd_json(rng).encode())]


def piece(rng: Random) -> bytes:
    """Return a piece of a long message whose other pieces never come, or too short for one."""
    return (b"\0" + rng.randbytes(rng.randrange(2_000)))[: rng.choice([1, 15, 16, 2_000])]


def packed(rng: Random, dst: int, **fields: Any) -> bytes:
    return wire.pack(
        rng.choice(KINDS[:9]),
        src=rng.getrandbits(40),
        dst=dst,
        flags=rng.randrange(32),
        ref=rng.randrange(1 << 20),
        target=rng.randrange(50),
        name=rng.choice(NAMES),
        **fields,
    )


def absurd_json(rng: Random) -> str:
    """Return JSON of a wrong shape, or none at all."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(
            [
                "",
                "{",
                "]",
                "nul",
                "NaN",
                "'x'",
                "\x00",
                "{}{}",
                '{"a":}',
                "[" * 50_000,
                '{"a":' * 20_000,
                "9" * 5000,
            ]
        )
    names = [
        "name",
        "ranks",
        "sizes",
        "group",
        "source",
        "dims",
        "job",
        "num_hosts",
        "idle_timeout",
        "ids",
        "line",
        "what",
        "mesh",
        "id",
        "op",
        "after",
        "grep",
        "env",
        "replay",
        "\ud800",
    ]
    return json.dumps(
        {rng.choice(names): rng.choice(ODD) for _ in range(rng.randrange(6))} if kind > 1 else rng.choice(ODD)
    )
