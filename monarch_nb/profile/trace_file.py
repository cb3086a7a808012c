"""Merges the traces of all ranks into one file for Perfetto and Chrome. Ranks have prepared their parts
(`_rank/trace.py`), which are concatenated here.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, cast

from monarch_nb._protocol.profiles import ProfileReport

_LEVEL = 5


def write_trace(path: Path, reports: Mapping[int, ProfileReport], *, base_ns: int, about: str) -> None:
    """Write the traces of ranks into one file, compressed if its name ends in .gz. The file appears only when
    it's complete.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        with _opened(draft, is_compressed=path.name.endswith(".gz")) as file:
            for piece in pieces(reports, base_ns, about):
                file.write(piece)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _opened(path: Path, *, is_compressed: bool) -> IO[bytes]:
    return (
        cast("IO[bytes]", gzip.open(path, "wb", compresslevel=_LEVEL)) if is_compressed else path.open("wb")
    )


def pieces(reports: Mapping[int, ProfileReport], base_ns: int, about: str) -> Iterator[bytes]:
    """Yield the content of the trace file in pieces.

    >>> part = zlib.compress(b'{"ph":"X","name":"aten::mm"}')
    >>> text = b"".join(pieces({rank: ProfileReport("h", 7 + rank, part) for rank in (0, 1)}, 5, "cell #1"))
    >>> len(json.loads(text)["traceEvents"])
    2
    """
    ranks = [
        {"rank": rank, "host": report.host, "pid": report.pid} for rank, report in sorted(reports.items())
    ]
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
        "traceName": about,
        "ranks": ranks,
    }
    yield json.dumps(head).encode().removesuffix(b"}") + b', "traceEvents": [\n'
    is_first = True
    for _, report in sorted(reports.items()):
        events = zlib.decompress(report.trace or b"")
        if events:
            yield events if is_first else b",\n" + events
            is_first = False
    yield b"\n]}\n"
