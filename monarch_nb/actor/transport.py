"""`enable_transport`, for compatibility with Monarch: a mesh chooses the transport of its messages itself."""

from __future__ import annotations

import enum
import warnings

from monarch_nb.actor.worker_address import parse


class ChannelTransport(enum.Enum):
    """The transport kinds of Monarch, accepted for compatibility."""

    TcpWithLocalhost = "tcp(localhost)"
    TcpWithHostname = "tcp(hostname)"
    MetaTlsWithHostname = "metatls(hostname)"
    MetaTlsWithIpV6 = "metatls(ipv6)"
    Tls = "tls"
    Local = "local"
    Unix = "unix"


_WORDS = ("tcp", "ipc", "tls", "metatls", "metatls-hostname")


def enable_transport(transport: ChannelTransport | str) -> None:
    """Check the name of a transport, and change nothing: messages take unix sockets on a machine, and tcp
    with CURVE (encrypted, both sides known) between machines.

    An address is where Monarch's clients would listen. Here programs dial workers, and workers dial back to
    an address that's chosen towards them.

    Raises:
        ValueError: for what is no transport.
    """
    if isinstance(transport, ChannelTransport) or transport in _WORDS:
        return
    try:
        parse(transport)
    except ValueError:
        raise ValueError(
            f"enable_transport takes a ChannelTransport, one of {', '.join(map(repr, _WORDS))}, or an "
            f"address such as tcp://10.0.0.5:8080; not {transport!r}"
        ) from None
    warnings.warn(
        f"enable_transport({transport!r}) has no effect in monarch_nb: a program listens at an "
        "address that's chosen towards each worker. Say where workers listen: "
        "run_worker_loop_forever(address=...)",
        stacklevel=2,
    )
