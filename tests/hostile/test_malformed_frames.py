"""Noise at every door of a mesh: sockets of its processes, the port for other machines, the Jupyter
server. Nobody dies of it, nobody grows.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from frames import absurd_json, frame, piece
from hostile import generator, nothing_left, num_tries, tried
from own_meshes import own_mesh
from processes import PATIENCE_S
from waiting import wait_for_server

from monarch_nb._protocol.programs import Status
from monarch_nb._wire import address
from monarch_nb.mesh import Mesh

MAX_GROWTH_BYTES = 100 << 20
MAX_MORE_FILES = 8
MAX_PAGE_MESSAGE = 1 << 16
"""The server ends the connection of a page that sends more at once."""
WATCHED: dict[str, list[Any]] = {
    "what": ["meshes", "status", "logs", "debug", "other", None, [], {}],
    "mesh": ["noise", "noise", "nope", "x" * 300, "../../etc/passwd", "\x00", "", 5, None],
    "ranks": ["all", "0", "99", "(", "", 5, None],
    "grep": ["", "(", "(a+)+$", "\x00", 5],
    "after": [None, 0, -1, 10**30, "x", True],
}  # fmt: skip
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with nothing_left(), own_mesh("noise", {"gpus": 2}, num_hosts=2) as started:
        started.run("1")
        yield started


class Unharmed:
    """Processes that must live on, answer, and be no bigger than before."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        registry = mesh._session.request(Status())
        self.processes = [
            psutil.Process(pid)
            for pid in [*(h.pid for h in registry.hosts), *(p.pid for p in registry.procs)]
        ]
        self._memory = [p.memory_info().rss for p in self.processes]
        self._files = [p.num_fds() for p in self.processes]

    def check(self) -> None:
        assert self._answers()
        for process, memory, files in zip(self.processes, self._memory, self._files, strict=True):
            assert process.is_running() and process.status() != psutil.STATUS_ZOMBIE, process
            assert process.memory_info().rss < memory + MAX_GROWTH_BYTES, (
                f"{process} has grown from {memory:,} to {process.memory_info().rss:,} bytes"
            )
            assert process.num_fds() <= files + MAX_MORE_FILES, (
                f"{process} had {files} descriptors open, now {process.num_fds()}"
            )

    def _answers(self) -> bool:
        return set(self._mesh.execute(os.getpid).get(60).values()) <= {p.pid for p in self.processes}


def test_sockets_of_processes(mesh: Mesh) -> None:
    unharmed, rng = Unharmed(mesh), generator("sockets")
    registry = mesh._session.request(Status())
    doors = [
        (mesh._session.transport.directory, address.CONTROLLER),
        *((mesh._session.transport.directory, p.proc) for p in registry.procs if not address.host_of(p.proc)),
    ]
    for directory, proc in doors:
        for _ in range(num_tries(4, 20)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
                sender.settimeout(PATIENCE_S)
                sender.connect(address.socket_path(directory, proc))
                for _ in range(50):
                    for each in (*frame(rng, proc), piece(rng)):
                        sender.send(each)
            unharmed.check()
            tried("bursts of malformed frames")


def test_the_port_for_other_machines(mesh: Mesh) -> None:
    unharmed, rng = Unharmed(mesh), generator("port")
    controller = unharmed.processes[0]
    (port,) = {c.laddr.port for c in controller.net_connections() if c.status == psutil.CONN_LISTEN}
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
    for _ in range(num_tries(10, 60)):
        opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for each in opened:
            start = greeting[: rng.choice([0, 1, 9, 10, 11, 12, 32, 64])]
            with suppress(OSError):
                each.sendall(start + rng.randbytes(rng.choice([0, 1, 10, 1000, 100_000])))
        for each in opened:
            each.close()
        unharmed.check()
        tried("bursts of strangers")


class Server:
    """A Jupyter server with our extension."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "server.log"
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "jupyter_server",
                    "--allow-root",
                    "--ip=127.0.0.1",
                    "--ServerApp.port=0",
                    "--IdentityProvider.token=T",
                    f"--ServerApp.root_dir={folder}",
                    "--ServerApp.jpserver_extensions={'monarch_nb': True}",
                ],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.pid = self._process.pid
        runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
        self.url = f"http://127.0.0.1:{wait_for_server(self._process, runtime, self._log)}"

    def log(self) -> str:
        return self._log.read_text()

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        request = urllib.request.Request(
            f"{self.url}/{path}", body, {"Authorization": "token T"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S * 4) as answer:
                return answer.status, answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")

    def close(self) -> str:
        """End it; return its log."""
        self._process.terminate()
        self._process.wait(PATIENCE_S * 4)
        return self.log()


class Page:
    """A page's connection."""

    def __init__(self, server: Server) -> None:
        import websocket

        self.socket = websocket.create_connection(
            f"{server.url.replace('http', 'ws')}/monarch_nb/stream?token=T", timeout=PATIENCE_S * 4
        )
        assert "hello" in self.socket.recv()

    def ask(self, message: dict[str, Any]) -> None:
        self.socket.send(json.dumps(message))

    def answer(self, number: int) -> dict[str, Any]:
        """Return the next message about one watch."""
        while True:
            message: dict[str, Any] = json.loads(self.socket.recv())
            if message.get("id") == number:
                return message

    def read_to_the_end(self) -> None:
        """Read until the server has closed the connection.

        Raises:
            WebSocketException, OSError: always, in the end.
        """
        while True:
            self.socket.recv()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, mesh: Mesh) -> Iterator[Server]:
    opened = Server(tmp_path_factory.mktemp("server"))
    yield opened
    log = opened.close()
    assert "Uncaught exception" not in log, log[-6000:]
    assert "stream?token=T" not in log, "the log names the token"


ACTIONS = ("interrupt", "heal", "resize", "debug")
LOOKS = ("", "/logs", "/stacks", "/journal", "/attach")
NOT_STARTED: tuple[dict[str, Any], ...] = (
    {"dims": [["gpus", 0]]},
    {"gpus": 2},
    {"num_hosts": -1},
    {"idle_timeout": "soon"},
    {"job": "slurm"},
    {"name": "a b"},
)
QUERIES = ("limit", "before", "ranks", "grep", "other")


def test_bodies_and_addresses(server: Server, mesh: Mesh) -> None:
    unharmed, rng = Unharmed(mesh), generator("rest")
    for _ in range(num_tries(60, 1000)):
        if rng.random() < 0.5:
            action = rng.choice([*(f"meshes/noise/{a}" for a in ACTIONS), "meshes"])
            status, text = server.ask("POST", f"monarch_nb/api/{action}", absurd_body(rng, action))
        else:
            query = urllib.parse.urlencode(
                {
                    rng.choice(QUERIES): rng.choice(
                        ["", "-1", "x", "9" * 400, "(", "(a+)+$", "🎉", "\x00", "0-", "all"]
                    )
                }
            )
            status, text = server.ask(
                "GET",
                f"monarch_nb/api/meshes/{rng.choice(['noise', 'nope', '..', '%00', 'x' * 300])}"
                f"{rng.choice(LOOKS)}?{query}",
            )
        assert status < 500, (status, text[:2000])
        assert "Traceback" not in text
        assert (
            status < 400 or json.loads(text)["message"] if text.startswith("{") else status in (200, 204, 404)
        ), text[:2000]
        tried("requests to the server")
    unharmed.check()


def absurd_body(rng: Random, action: str) -> bytes:
    """Return a body. For a start there's always something in it that makes no sense: a mesh would be
    started else.
    """
    body = absurd_json(rng)
    if action == "meshes":
        with suppress(ValueError, RecursionError):
            found = json.loads(body)
            if not isinstance(found, dict):
                found = {"name": found or 0}
            body = json.dumps({**found, **rng.choice(NOT_STARTED)})
        body = body or "{"
    return body.encode(errors="replace")


def test_messages_of_pages(server: Server, mesh: Mesh) -> None:
    unharmed, rng = Unharmed(mesh), generator("pages")
    for _ in range(num_tries(3, 20)):
        page = Page(server)
        for number in range(1, 31):
            page.socket.send(absurd_json(rng)[:MAX_PAGE_MESSAGE].encode(errors="replace").decode())
            page.ask(
                {
                    "op": "watch",
                    "id": number,
                    **{name: rng.choice(values) for name, values in WATCHED.items()},
                }
            )
            if rng.random() < 0.5:
                page.ask(
                    {"op": rng.choice(["taken", "unwatch", "x"]), "id": rng.choice([number, -1, 0, 10**30])}
                )
        page.ask({"op": "watch", "id": 99, "what": "status", "mesh": "nope"})
        assert "nope" in page.answer(99)["message"]
        page.socket.close()
        page = Page(server)
        page.ask({"op": "watch", "id": 7, "what": "status", "mesh": "noise"})
        assert page.answer(7)["type"] == "status"
        page.socket.close()
        tried("pages that send nonsense")
    unharmed.check()


@pytest.mark.parametrize(
    "wrong",
    [{"mesh": "x" * 300}, {"mesh": "\x00"}, {"mesh": "../x"}, {"ranks": "9"}, {"ranks": "("}, {"grep": "("},
     {"after": "x"}],
    ids=str,
)  # fmt: skip
def test_a_watch_that_cannot_be_is_answered(wrong: dict[str, Any], server: Server) -> None:
    page = Page(server)
    page.ask({"op": "watch", "id": 5, "what": "logs", "mesh": "noise", **wrong})
    answer = page.answer(5)
    assert answer["type"] == "error" and answer["message"], answer
    page.socket.close()


def test_a_message_that_is_too_long_ends_that_page_alone(server: Server) -> None:
    import websocket

    other, page = Page(server), Page(server)
    page.socket.send("x" * (MAX_PAGE_MESSAGE + 1))
    with pytest.raises((websocket.WebSocketException, OSError)):
        page.read_to_the_end()
    other.ask({"op": "watch", "id": 1, "what": "status", "mesh": "noise"})
    assert other.answer(1)["type"] == "status"
    other.socket.close()
