"""The controller's listening addresses: new keys have a port beside the old one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq
from waiting import wait_until

from monarch_nb._host.controller.listening import Listening, renewed
from monarch_nb._host.request import RequestError


@pytest.fixture
def router() -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context.socket(zmq.ROUTER)
    context.destroy(0)


def is_open(endpoint: str) -> bool:
    where, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((where, int(port))) == 0


def taken_ports(num: int) -> tuple[list[socket.socket], int]:
    """Return sockets that hold neighbouring ports, and the first one."""
    while True:
        held = [socket.socket()]
        held[0].bind(("127.0.0.1", 0))
        first = held[0].getsockname()[1]
        try:
            for port in range(first + 1, first + num):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
        except OSError:
            for each in held:
                each.close()
        else:
            return held, first


def test_new_keys_come_with_a_new_port_and_the_old_one_is_closed_later(router: zmq.Socket[bytes]) -> None:
    listening = Listening(router)
    old, key = listening.on("tcp://127.0.0.1:*"), listening.keys
    moved = listening.renew()
    new = listening.on("tcp://127.0.0.1:*")
    assert moved(old) == new != old and listening.keys != key
    assert is_open(old) and is_open(new)
    listening.close_old()
    wait_until(lambda: not is_open(old), "ZeroMQ's own thread has closed it")
    assert is_open(new) and listening.on(new) == new


def test_an_address_that_hosts_have_come_by_has_the_new_port(router: zmq.Socket[bytes]) -> None:
    listening = Listening(router)
    port = listening.on("tcp://0.0.0.0:*").rpartition(":")[2]
    came_by = listening.comes_by(f"tcp://127.0.0.1:{port}")
    moved = listening.renew()
    assert moved(came_by) != came_by and is_open(moved(came_by))
    assert listening.on(moved(came_by)) == moved(came_by)


def test_a_range_of_ports_is_kept_and_the_bound_one_is_used_again(router: zmq.Socket[bytes]) -> None:
    held, first = taken_ports(2)
    ports = [first, first + 1]
    for each in held:
        each.close()
    listening = Listening(router)
    old = listening.on(f"tcp://127.0.0.1:{first}", ports)
    assert listening.renew()(old) == f"tcp://127.0.0.1:{first + 1}"
    listening.close_old()
    assert listening.on(f"tcp://127.0.0.1:{first}", ports) == f"tcp://127.0.0.1:{first + 1}"
    wait_until(lambda: not is_open(old), "ZeroMQ's own thread has closed it")


def test_without_a_free_port_nothing_changes(router: zmq.Socket[bytes]) -> None:
    held, first = taken_ports(2)
    held[0].close()
    listening = Listening(router)
    elsewhere = listening.on("tcp://127.0.0.1:*")
    endpoint, keys = listening.on(f"tcp://127.0.0.1:{first}", [first, first + 1]), listening.keys
    with pytest.raises(RequestError, match=f"ports {first}-{first + 1} of this machine are all taken"):
        listening.renew()
    assert (listening.keys, listening.on("tcp://127.0.0.1:*")) == (keys, elsewhere)
    listening.close_old()
    assert is_open(endpoint) and is_open(elsewhere)
    held[1].close()


def test_an_address_of_another_network_stays() -> None:
    assert renewed("", {}) == ""
    assert renewed("tcp://[fd00::1]:70", {"tcp://[::]:70": "tcp://[::]:71"}) == "tcp://[fd00::1]:71"
