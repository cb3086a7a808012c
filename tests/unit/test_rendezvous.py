"""Where ranks meet: at a port that nobody else is given meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from monarch_nb._rank import rendezvous


def test_the_port_is_none_that_connections_get() -> None:
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    found = [rendezvous.free_address() for _ in range(20)]
    assert all(rendezvous.FIRST_PORT <= port < first for _, port in found)
    assert len({port for _, port in found}) > 10, "programs that ask at the same time get others"
    with socket.socket() as listener:
        listener.bind(found[0])


def test_ports_in_use_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        monkeypatch.setattr(rendezvous, "_some_ports", lambda: [taken.getsockname()[1]])
        _, port = rendezvous.free_address()
        assert port != taken.getsockname()[1]


@pytest.mark.parametrize("text", ["1024 60999", "many", ""])
def test_any_range_of_the_systems_will_do(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "range"
    file.write_text(text)
    monkeypatch.setattr(rendezvous, "_EPHEMERAL", file)
    address, port = rendezvous.free_address()
    with socket.socket() as listener:
        listener.bind((address, port))


def test_the_name_of_another_machine_is_no_address_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "192.0.2.1")
    assert rendezvous.free_address()[0] == "127.0.0.1"
