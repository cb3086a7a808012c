"""Types of requests between data planes: a path's own requests are beside its code; here are those that every
process answers.

Questions travel as calls of the mesh's messages do, encoded by the sender: some hold a handle of the user's,
such as a mesh. Each names who answers it: a path, or one of `DataPlane.services`.

    >>> class HowFull(Question[int], frozen=True):
    ...     to = "my_path"
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from monarch_nb._protocol.base import Record
from monarch_nb.rdma.handle import Addresses, Handle

AnswerT = TypeVar("AnswerT", covariant=True)


class Question(Record, Generic[AnswerT], frozen=True):
    """The base of requests to the owner of a buffer; `AnswerT` is the type of the answer, which is never
    None.
    """

    to: ClassVar[str]
    """The path, or the service, that answers."""
    handle: Handle
    """The buffer that is asked about."""


class Done(Record, frozen=True):
    """The answer that a request was carried out."""


class Drop(Question[Done], frozen=True):
    """The request to end a registration."""

    to = "drop"


class Fetched(Question[Done], frozen=True):
    """The notice that a receiver has fetched the buffers of a message; `by`: its places in its meshes."""

    to = "fetched"
    by: Addresses
