"""Types of requests to the owner of a buffer, by which its NIC gets access to the memory."""

from __future__ import annotations

from typing import Final, TypeVar

from monarch_nb._protocol.base import Record
from monarch_nb.rdma.handle import Addresses
from monarch_nb.rdma.paths.verbs.mover import Target
from monarch_nb.rdma.paths.verbs.queue import QPInfo
from monarch_nb.rdma.question import Done, Question

NAME: Final = "verbs"
T = TypeVar("T")


class Refused(Record, frozen=True):
    """The answer of an owner whose NICs can't do what was asked, with the reason."""

    why: str


class Register(Question[Target | Refused], frozen=True):
    """The request that the owner register a region with a NIC; the answer says how it's reached.

    Attributes:
        port: the asker's; the owner takes the one that is most like it.
        link_layer: of that port.
    """

    to = NAME
    port: str
    link_layer: str


class Connected(Record, frozen=True):
    """The owner's end of a connection.

    Attributes:
        qp: its queue pair.
        table: the address of its table of keys, and the remote key for it.
    """

    qp: QPInfo
    table: tuple[int, int]


class Connect(Question[Connected | Refused], frozen=True):
    """The request for a queue pair of the owner.

    Attributes:
        port: port of the owner.
        qp: the asker's queue pair.
        given_up: numbers of the owner's queue pairs that the asker no longer uses.
        places: the asker's places in its meshes, and `process`, which run of it asks.
    """

    to = NAME
    port: str
    qp: QPInfo
    given_up: list[int]
    places: Addresses
    process: int


class IsAlive(Question[Done | Refused], frozen=True):
    """The question whether the owner lives, and holds the buffer."""

    to = NAME
