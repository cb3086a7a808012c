"""The interface to the data plane that the transport needs. The data plane belongs to a higher room: the
package sets it (`monarch_nb/__init__`), and it's loaded when a large value is first sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monarch_nb._transport.transport import Transport
    from monarch_nb._wire.codec import Encoded


class RemoteArguments(Protocol):
    """The interface that moves big arguments and results to other machines."""

    def offer(self, transport: Transport, body: Encoded, receivers: Sequence[int], /) -> Encoded:
        """Return a small body for `body`, whose buffers the receivers fetch; `body` itself if it's too small
        for that.
        """

    def join(self) -> None:
        """Enable this process to answer requests about its memory."""


_load: Callable[[], RemoteArguments] | None = None


def provide(load: Callable[[], RemoteArguments]) -> None:
    """Set the function that loads the implementation."""
    global _load
    _load = load


def remote_arguments() -> RemoteArguments:
    """Return the service for large arguments; loads it the first time."""
    assert _load is not None, "monarch_nb/__init__ puts it in place"
    return _load()
