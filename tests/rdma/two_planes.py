"""Two data planes without a mesh: one in this process, one in another, joined by a socket pair. For tests and
benchmarks of paths.

with TwoPlanes() as two:
    handle = two.far(give, 1000)        # runs give(plane, 1000) over there
    two.plane.submit([Job("read", handle, memory_of(mine))], "tcp").get()
"""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import cloudpickle

from monarch_nb.exceptions import RDMAError, TransferTimeout
from monarch_nb.rdma import data_plane
from monarch_nb.rdma.data_plane import DataPlane
from monarch_nb.rdma.path import gone
from monarch_nb.rdma.question import Question

PATIENCE_S = 30.0
T = TypeVar("T")
_LENGTH = struct.Struct("<Q")


class PairLink:
    """A `Link` to one other process, and calls of functions there. One thread reads."""

    def __init__(self, sock: socket.socket, proc: int, label: str) -> None:
        self.addresses = (("", proc),)
        self.label = label
        self._sock = sock
        self._refs = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._calls = ThreadPoolExecutor(16, "two-planes-call")
        self._answerer: Callable[[Question[Any]], Any] | None = None
        self._submit: Callable[[Callable[[], None]], object] | None = None
        self.plane: DataPlane | None = None
        self.ended = threading.Event()
        self.asked: list[Question[Any]] = []
        """All that this side has asked, for tests to look at."""
        self.on_ask: Callable[[Question[Any], Any], Any] | None = None
        """May change an answer before the path sees it: given what was asked, and the answer."""
        self._reader = threading.Thread(target=self._read, name="two-planes-reader", daemon=True)

    def start(self, plane: DataPlane) -> None:
        """Begin to read what the other process says."""
        self.plane = plane
        self._reader.start()

    # --- Link

    def ask(self, question: Question[T], timeout_s: float) -> T:
        handle = question.handle
        self.asked.append(question)
        try:
            found: T = self._request("ask", question).result(timeout_s)
        except TimeoutError:
            raise TransferTimeout(
                f"{handle.owner} didn't answer the data plane within {timeout_s:g} s"
            ) from None
        except ConnectionError:
            raise gone(handle, f"{handle.owner} has ended") from None
        except RDMAError:
            raise
        except Exception as error:
            raise RDMAError(f"{handle.owner} says: {type(error).__name__}: {error}") from None
        return self.on_ask(question, found) if self.on_ask else found

    def serve(self, answerer: Callable[..., Any], submit: Callable[[Callable[[], None]], object]) -> None:
        self._answerer, self._submit = answerer, submit

    # --- calls

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float = PATIENCE_S) -> Any:
        """Run `function(plane, *args)` in the other process."""
        return self.begin(function, *args).result(timeout_s)

    def begin(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Begin it."""
        return self._request("call", cloudpickle.dumps((function, args)))

    def _request(self, kind: str, what: Any) -> Future[Any]:
        ref, future = next(self._refs), Future[Any]()
        self._waiting[ref] = future
        if self.ended.is_set():
            self._give_up()
        else:
            with suppress(OSError):  # the reader notices, too
                self._send((kind, ref, what))
        return future

    def _send(self, message: Any) -> None:
        data = pickle.dumps(message)
        with self._lock:
            self._sock.sendall(_LENGTH.pack(len(data)) + data)

    def _read(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                length = _LENGTH.unpack(self._receive(_LENGTH.size))[0]
                self._take(*pickle.loads(self._receive(length)))
        self.ended.set()
        self._give_up()

    def _give_up(self) -> None:
        for ref in list(self._waiting):
            future = self._waiting.pop(ref, None)
            if future is not None and not future.done():
                future.set_exception(ConnectionError("the other process has ended"))

    def _receive(self, nbytes: int) -> bytes:
        found = self._sock.recv(nbytes, socket.MSG_WAITALL) if nbytes else b""
        while len(found) < nbytes:
            more = self._sock.recv(nbytes - len(found))
            if not more:
                raise EOFError
            found += more
        return found

    def _take(self, kind: str, ref: int, what: Any) -> None:
        if kind == "ask":
            assert self._submit is not None and self._answerer is not None
            answerer = self._answerer
            self._submit(lambda: self._answer(ref, lambda: answerer(what)))
        elif kind == "call":
            self._calls.submit(self._answer, ref, lambda: _called(what, self.plane))
        else:
            future = self._waiting.pop(ref, None)
            if future is not None:
                future.set_result(what) if kind == "result" else future.set_exception(what)

    def _answer(self, ref: int, function: Callable[[], Any]) -> None:
        try:
            message = ("result", ref, function())
        except BaseException as error:
            message = ("error", ref, error)
        with suppress(OSError):
            self._send(message)

    def close(self) -> None:
        """End it on this side; the other side notices."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._sock.close()
        self._calls.shutdown(cancel_futures=True)


def _called(what: bytes, plane: DataPlane | None) -> Any:
    function, args = pickle.loads(what)
    return function(plane, *args)


class TwoPlanes:
    """This process' data plane, and that of a second process, which ends with it.

    Args:
        environment: for the other process, besides this one's.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        paths = os.pathsep.join(p for p in sys.path if p)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
        )
        theirs.close()
        self.link = PairLink(ours, 0, "here")
        self.plane = DataPlane(self.link)
        self.link.start(self.plane)
        self.pid = self._process.pid

    def far(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function(plane, *args)` over there, and return what it returns."""
        return self.link.call(function, *args)

    def begin(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Begin it."""
        return self.link.begin(function, *args)

    def kill(self) -> None:
        """End the other process by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End both."""
        self.plane.close()
        self.link.close()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> TwoPlanes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _main() -> None:
    link = PairLink(socket.socket(fileno=int(sys.argv[1])), 1, "there")
    plane = DataPlane(link)
    data_plane.use(plane)
    link.start(plane)
    link.ended.wait()
    plane.close()
    link.close()


if __name__ == "__main__":
    _main()
