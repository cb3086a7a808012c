"""Types of requests to the owner of a buffer that set up and end TCP streams."""

from __future__ import annotations

from typing import Final

from monarch_nb._protocol.base import Record
from monarch_nb.rdma.paths.tcp.address import Address
from monarch_nb.rdma.question import Done, Question

NAME: Final = "tcp"


class Listening(Record, frozen=True):
    """The addresses where an owner listens, the best first, and the secret that proves who connects."""

    addresses: list[Address]
    secret: bytes


class Open(Question[Listening], frozen=True):
    """The request that the owner listen.

    Attributes:
        process: the process that will connect; see `Owner.process`.
        network: network in which the asker's addresses are valid; see `this_network`.
    """

    to = NAME
    process: int
    network: str


class Dial(Question[int], frozen=True):
    """The request that the owner connect to the asker; the answer is the connection's number.

    Attributes:
        name: of the owner, as the listening side expects it.
    """

    to = NAME
    addresses: list[Address]
    name: int
    secret: bytes


class Cut(Question[Done], frozen=True):
    """The request that the owner close broken streams, given by their numbers."""

    to = NAME
    streams: list[int]
