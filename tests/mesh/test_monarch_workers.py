"""The addresses that a Monarch program's workers listen at."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from monarch_nb.actor import attach_to_workers
from monarch_nb.actor.worker_address import Endpoint, listening, parse
from monarch_nb.actor.workers import key_file
from monarch_nb.exceptions import MeshStartError

T = 60

SERVE = """
import sys, threading
from monarch_nb.actor import run_worker_loop_forever
key, *addresses = sys.argv[1:]
for address in addresses:
    threading.Thread(target=run_worker_loop_forever, args=(address, key)).start()
"""


def listener() -> socket.socket:
    """Return a socket that listens, on an IPv6 address if there's one."""
    try:
        return socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


def test_workers_listen_where_a_monarch_program_has_them_listen(tmp_path: Path) -> None:
    key = str(tmp_path / "key")
    key_file(key)
    with listener() as inherited, socket.create_server(("127.0.0.1", 0)) as taken:
        host, port = inherited.getsockname()[:2]
        other = taken.getsockname()[1]
        taken.close()
        host = f"[{host}]" if ":" in host else host
        ipc, alias = f"service@ipc://{tmp_path}/worker", f"tcp://127.0.0.1:{other}@tcp://0.0.0.0:{other}"
        serves = [key, f"tcp://{host}:fd{inherited.fileno()}", ipc, alias]
        worker = subprocess.Popen([sys.executable, "-c", SERVE, *serves], pass_fds=[inherited.fileno()])
    try:
        hosts = attach_to_workers(ca=key, workers=[f"tcp://{host}:{port}", ipc, alias])
        assert hosts.initialized.get(T) and hosts.sizes == {"hosts": 3}
        hosts.shutdown().get(T)
    finally:
        worker.kill()
        worker.wait(T)


def test_a_worker_with_another_key_is_named_though_others_do_not_answer(tmp_path: Path) -> None:
    key, other = str(tmp_path / "key"), str(tmp_path / "other")
    key_file(key)
    with listener() as inherited, socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = inherited.getsockname()[:2]
        at = f"tcp://{f'[{host}]' if ':' in host else host}"
        worker = subprocess.Popen(
            [sys.executable, "-c", SERVE, other, f"{at}:fd{inherited.fileno()}"],
            pass_fds=[inherited.fileno()],
        )
        try:
            addresses = [f"tcp://127.0.0.1:{silent.getsockname()[1]}", f"{at}:{port}"]
            with pytest.raises(MeshStartError) as caught:
                attach_to_workers(ca=key, workers=addresses)
        finally:
            worker.kill()
            worker.wait(T)
    assert f"the worker at {at}:{port} has another key file" in str(caught.value)
    assert "ca=FILE" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "dial", "bind"),
    [
        ("tcp://node5:7000", "tcp://node5:7000", "tcp://node5:7000"),
        ("tcp://[fd00::5]:7000", "tcp://[fd00::5]:7000", "tcp://[fd00::5]:7000"),
        ("service<2Mu>@tcp://node5:1@tcp://[::]:2", "tcp://node5:1", "tcp://[::]:2"),
        ("ipc://@abstract", "ipc://@abstract", "ipc://@abstract"),
        ("tcp://node5:7000@ipc:///run/w", "tcp://node5:7000", "ipc:///run/w"),
    ],
)
def test_addresses_are_read(text: str, dial: str, bind: str) -> None:
    found = parse(text)
    assert (str(found.dial), str(found.bind)) == (dial, bind)


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.5",
        "tcp://fd00::5:7000",
        "tcp://a:b",
        "tcp://a:70000",
        "ipc://",
        "http://a:1",
        7000,
        "tcp://a:fd",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="tcp://10"):
        parse(text)


def test_a_name_is_listened_at_by_its_number_and_a_descriptor_must_listen() -> None:
    assert listening(parse("tcp://localhost:7000")) == Endpoint("127.0.0.1", 7000)
    with socket.socket() as deaf, pytest.raises(ValueError, match="is no tcp socket that listens"):
        listening(parse(f"tcp://h:fd{deaf.fileno()}"))
    with pytest.raises(ValueError, match="descriptor 9999 is no socket"):
        listening(parse("tcp://h:fd9999"))
