"""The addresses at which the controller listens for other hosts, and the key that it has there.

A listening address keeps the key that the socket had when it was bound. So new keys take a new port beside
the old one, at the same socket; the old port is closed, with its connections, when nobody needs it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import zmq

from monarch_nb._host.request import RequestError
from monarch_nb._wire.keys import KeyPair

_ANY = ("tcp://[::]", "tcp://0.0.0.0", "tcp://*")


@dataclass(frozen=True)
class _Bound:
    """An address at which this process listens.

    Attributes:
        ports: first and last port that may be used there; empty: any.
    """

    endpoint: str
    ports: tuple[int, ...] = ()


class Listening:
    """The listening addresses of one socket. Owned by the loop thread.

    Attributes:
        keys: the key pair for those who dial from now on.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._bound: dict[str, _Bound] = {}
        """By what was asked for, as in `tcp://10.0.0.5:*`."""
        self._addresses: set[str] = set()
        """Addresses of this machine by which hosts have come."""
        self._old: list[str] = []
        """Endpoints that have the last key."""
        self.keys = KeyPair.new()
        self._use(self.keys)

    def _use(self, keys: KeyPair) -> None:
        self.keys = keys
        self._socket.curve_secretkey = keys.secret.encode()
        self._socket.curve_publickey = keys.public.encode()

    def on(self, bind: str, ports: Sequence[int] = ()) -> str:
        """Listen at `bind`, unless this process does already; return the address to dial.

        Args:
            ports: first and last port that may be used instead, now and later on; empty: no others now, any
                later on.
        """
        if bind in self._addresses:
            return bind
        for asked, each in self._bound.items():
            if bind in (asked, each.endpoint) or _is_same_range(bind, ports, each):
                return each.endpoint
        self._bound[bind] = _Bound(self._bind(bind), tuple(ports))
        return self._bound[bind].endpoint

    def _bind(self, bind: str) -> str:
        self._socket.setsockopt(zmq.IPV6, int("[" in bind))
        self._socket.bind(bind)
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def comes_by(self, address: str) -> str:
        """Record an address of this machine that somebody has dialled; return it."""
        self._addresses.add(address)
        return address

    def renew(self) -> Callable[[str], str]:
        """Take new keys, and listen at new ports beside the old ones; return what tells an old address' new
        one.

        Raises:
            RequestError: if no port is free; nothing has changed then.
        """
        before, bound = self.keys, {}
        self._use(KeyPair.new())
        try:
            for bind, each in self._bound.items():
                bound[bind] = _Bound(self._bind_beside(each), each.ports)
        except RequestError:
            self._use(before)
            for each in bound.values():
                self._unbind(each.endpoint)
            raise
        ports = {self._bound[bind].endpoint: each.endpoint for bind, each in bound.items()}
        self._old += ports
        self._bound = {bind if bind.endswith(":*") else each.endpoint: each for bind, each in bound.items()}
        self._addresses = {renewed(address, ports) for address in self._addresses}
        return lambda address: renewed(address, ports)

    def _bind_beside(self, each: _Bound) -> str:
        where = each.endpoint.rpartition(":")[0]
        for port in range(each.ports[0], each.ports[1] + 1) if each.ports else ("*",):
            try:
                return self._bind(f"{where}:{port}")
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise RequestError(f"this machine can't listen at {where}:{port}: {error}") from None
        raise RequestError(
            f"new keys need a port beside the old one, and ports {each.ports[0]}-{each.ports[1]} of this "
            "machine are all taken; name more in the profile: ports ="
        )

    def close_old(self) -> None:
        """Listen no longer with the last key: connections by it end."""
        old, self._old = self._old, []
        for endpoint in old:
            self._unbind(endpoint)

    def _unbind(self, endpoint: str) -> None:
        with suppress(zmq.ZMQError):
            self._socket.unbind(endpoint)


def _is_same_range(bind: str, ports: Sequence[int], each: _Bound) -> bool:
    """Say whether an address with one of these ports is bound already."""
    where = bind.rpartition(":")[0]
    return bool(ports) and tuple(ports) == each.ports and where == each.endpoint.rpartition(":")[0]


def renewed(address: str, ports: dict[str, str]) -> str:
    """Return the new address for an old one; the same if it isn't known.

    Args:
        ports: new endpoints by old ones.

    Example:
        >>> renewed("tcp://10.0.0.5:7000", {"tcp://[::]:7000": "tcp://[::]:7001"})
        'tcp://10.0.0.5:7001'
        >>> renewed("tcp://10.0.0.5:7000", {"tcp://10.0.0.6:7000": "tcp://10.0.0.6:7001"})
        'tcp://10.0.0.5:7000'
    """
    where, _, port = address.rpartition(":")
    known = [address, *(f"{anywhere}:{port}" for anywhere in _ANY)]
    found = next((ports[each] for each in known if each in ports), None)
    return address if found is None else f"{where}:{found.rpartition(':')[2]}"
