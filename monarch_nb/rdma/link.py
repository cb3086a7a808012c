"""How the data plane of one process asks that of another, and who this process is. The mesh's messages do both; a test may do it otherwise."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from monarch_nb._post import here
from monarch_nb._post.failure import describe, encode_failure, revive
from monarch_nb._post.office import Office, OfficeClosed
from monarch_nb._post.pending import Body, OneReply
from monarch_nb._wire import codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.message import Message
from monarch_nb.exceptions import MeshError, RDMAError, TransferTimeout
from monarch_nb.rdma.handle import Addresses, Handle
from monarch_nb.rdma.path import gone

ASK = b"__rdma__"
Answerer = Callable[[Mapping[str, Any]], dict[str, Any]]


class Link(Protocol):
    """What the data plane needs of the world around it."""

    @property
    def addresses(self) -> Addresses:
        """The meshes that this process is in, and its proc id in each."""

    @property
    def label(self) -> str:
        """What people call this process."""

    def ask(self, handle: Handle, fields: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Ask the owner of `handle` and wait for what its `Answerer` returns.

        Raises:
            BufferGone: if the owner has ended, or says so.
            RDMAError: if it raised.
            TransferTimeout: if it didn't answer in time.
        """

    def serve(self, answerer: Answerer, submit: Callable[[Callable[[], None]], None]) -> None:
        """From now on, answer those who ask: `submit` runs a function in another thread."""


def ask_process(office: Office, proc: int, fields: Mapping[str, Any], timeout_s: float, who: str) -> dict[str, Any] | None:
    """Ask the data plane of a process, and wait; None if that has ended.

    Raises:
        MeshError: as it was raised there, or an RDMAError that says what was.
        TransferTimeout: if it didn't answer in time.
    """
    reply = OneReply(office, (proc,))
    ref = office.expect(reply)
    try:
        office.post(proc, wire.CALL, codec.encode(dict(fields)), ref=ref, name=ASK)
        office.check_ends(reply)
        in_time = office.reader.wait(reply, time.monotonic() + timeout_s)
    finally:
        office.forget(ref)
    if not in_time:
        raise TransferTimeout(f"{who} didn't answer the data plane within {timeout_s:g} s")
    if reply.body is None:
        return None
    found = reply.body.value()
    if reply.body.flags & wire.ERROR:
        error = revive(found)
        raise error if isinstance(error, MeshError) else RDMAError(f"{who} says: {found['type']}: {found['message']}")
    return dict(found)


class MeshLink:
    """Asks by a mesh's messages: between machines they are encrypted and come from those who are let in.

    A rank is in one mesh; a program may be connected to several.
    """

    def __init__(self) -> None:
        where = here.whereabouts()
        self.label = f"rank {where['rank']}" if here.rank is not None else f"the program {os.getpid()}"
        self._offices: dict[str, Office] = {}
        self._serve: Callable[[Office], None] = lambda _office: None

    @property
    def addresses(self) -> Addresses:
        """See `Link`."""
        return tuple((mesh, office.me) for mesh, office in self._offices.items())

    def join(self, office: Office) -> None:
        """Talk by this office, too."""
        self._offices[office.mesh_id] = office
        self._serve(office)

    def leave(self, office: Office) -> bool:
        """The office is about to close; say whether any is left."""
        self._offices.pop(office.mesh_id, None)
        return bool(self._offices)

    def knows(self, office: Office) -> bool:
        """Whether it talks by this office."""
        return self._offices.get(office.mesh_id) is office

    def _way_to(self, handle: Handle) -> tuple[Office, int]:
        for mesh, proc in handle.owner.addresses:
            office = self._offices.get(mesh)
            if office is not None:
                return office, proc
        raise RDMAError(f"{handle.owner} can't be asked from here: it's in no mesh that {self.label} is in, or connected to")

    def ask(self, handle: Handle, fields: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """See `Link`."""
        answer = ask_process(*self._way_to(handle), fields, timeout_s, str(handle.owner))
        if answer is None:
            raise gone(handle, f"{handle.owner} has ended")
        return answer

    def serve(self, answerer: Answerer, submit: Callable[[Callable[[], None]], None]) -> None:
        """See `Link`."""

        def serve_office(office: Office) -> None:
            def take(message: Message) -> None:
                body = Body(office, message)  # now: a buffer that travels along is mapped before its sender forgets it
                submit(lambda: self._answer(office, answerer, message, body))

            office.services[ASK] = take

        self._serve = serve_office
        for office in self._offices.values():
            serve_office(office)

    def _answer(self, office: Office, answerer: Answerer, message: Message, body: Body) -> None:
        flags = 0
        try:
            found = codec.encode(answerer(body.value()))
        except Exception as error:
            flags = wire.ERROR
            found = encode_failure(describe(error, **here.whereabouts(), endpoint="rdma"))
        with suppress(OfficeClosed):
            office.post(message.src, wire.REPLY, found, flags=flags, slot=message.slot, ref=message.ref)
            office.settle()


class LoopLink:
    """Asks nobody but this process: a data plane without a mesh."""

    def __init__(self, label: str = "this process") -> None:
        self.addresses: Addresses = (("", 0),)
        self.label = label
        self._answerer: Answerer | None = None

    def ask(self, handle: Handle, fields: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """See `Link`."""
        if not handle.is_ours or self._answerer is None:
            raise gone(handle, "its owner can't be asked from here")
        return self._answerer(fields)

    def serve(self, answerer: Answerer, submit: Callable[[Callable[[], None]], None]) -> None:
        """See `Link`."""
        self._answerer = answerer
