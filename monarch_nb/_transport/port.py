"""Ports: addresses to which values can be sent, as handles that travel in messages."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from monarch_nb._transport import process_context
from monarch_nb._transport.context import call_context
from monarch_nb._transport.failure import describe, encode_failure
from monarch_nb._wire import codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.mesh_address import MeshAddress

T = TypeVar("T")


class Port(Generic[T]):
    """The sending end of a channel, or of one call's answer.

    Attributes:
        proc, ref: the waiting process, and the number under which it waits.
        slot: position in the mesh that the value comes from.
        mesh: address of that process' mesh.

    Example:
        >>> port, receiver = Channel.open()     # doctest: +SKIP
        >>> port.send(3); receiver.recv().get()  # doctest: +SKIP
        3
    """

    __slots__ = ("mesh", "proc", "ref", "slot")

    def __init__(self, proc: int, ref: int, slot: int = 0, mesh: MeshAddress | None = None) -> None:
        self.proc = proc
        self.ref = ref
        self.slot = slot
        self.mesh = mesh if mesh is not None else process_context.transport().mesh

    def send(self, value: T) -> None:
        """Send `value` to the receiving end.

        Raises:
            CannotPickle: if the value can't be sent.
        """
        if not process_context.is_sent_remotely(self, "send", value):
            self._post(codec.encode(value, "value") if value is not None else None, 0)

    def exception(self, error: BaseException) -> None:
        """Send an exception: it's raised where the value is awaited."""
        if not process_context.is_sent_remotely(self, "exception", error):
            self._post(encode_failure(describe(error, **process_context.whereabouts())), wire.ERROR)

    def _post(self, body: Any, flags: int) -> None:
        transport = process_context.transport_in(self.mesh)
        if body is None:
            body, flags = codec.Encoded(b""), flags | wire.EMPTY
        printed = transport.printed_for(call_context.get().origin)
        transport.post(self.proc, wire.REPLY, body, flags=flags, slot=self.slot, ref=self.ref, origin=printed)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.proc, self.ref, self.slot, self.mesh)

    def __repr__(self) -> str:
        return f"Port({self.proc:#x}, {self.ref})"
