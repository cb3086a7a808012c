"""Cuts a transfer into work requests. Pure.

A work request names one stretch at the owner and up to some number of stretches here. Requests are posted in
chains, of which only the last reports; so many small ones cost one completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from monarch_nb.rdma.layout import Piece


class Part(NamedTuple):
    """A stretch of local memory."""

    here: int
    nbytes: int


class Request(NamedTuple):
    """A stretch at the owner, with its place in local memory."""

    there: int
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """The number of bytes of all parts."""
        return sum(p.nbytes for p in self.parts)


def requests(pieces: Iterable[Piece], max_bytes: int, max_parts: int) -> Iterator[Request]:
    """Yield requests for these pieces: pieces that are contiguous at the owner are merged, long ones are
    split.

    >>> for request in requests([Piece(0, 100, 4), Piece(4, 200, 4), Piece(50, 0, 5)], 4096, 8):
    ...     print(request)
    Request(there=0, parts=(Part(here=100, nbytes=4), Part(here=200, nbytes=4)))
    Request(there=50, parts=(Part(here=0, nbytes=5),))
    """
    first, parts, total = 0, list[Part](), 0
    for piece in pieces:
        for there, here, nbytes in _cut(piece, max_bytes):
            if parts and (there != first + total or len(parts) == max_parts or total + nbytes > max_bytes):
                yield Request(first, tuple(parts))
                parts, total = [], 0
            if not parts:
                first = there
            parts.append(Part(here, nbytes))
            total += nbytes
    if parts:
        yield Request(first, tuple(parts))


def _cut(piece: Piece, max_bytes: int) -> Iterator[Piece]:
    for at in range(0, piece.nbytes, max_bytes):
        yield Piece(piece.there + at, piece.here + at, min(max_bytes, piece.nbytes - at))


def chains(wanted: Iterable[Request], max_requests: int, max_bytes: int) -> Iterator[list[Request]]:
    """Yield groups of requests that are posted together."""
    chain, total = list[Request](), 0
    for request in wanted:
        if chain and (len(chain) == max_requests or total + request.nbytes > max_bytes):
            yield chain
            chain, total = [], 0
        chain.append(request)
        total += request.nbytes
    if chain:
        yield chain


def packed(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the same pieces with contiguous local offsets, for an intermediate copy."""
    found, at = [], 0
    for piece in pieces:
        found.append(Piece(piece.there, at, piece.nbytes))
        at += piece.nbytes
    return found
