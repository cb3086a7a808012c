"""Data planes of forked processes, joined by sockets: without a mesh, and without torch."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import socket
import struct
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy

from monarch_nb.exceptions import RDMAError, TransferTimeout
from monarch_nb.rdma import RDMABuffer, empty
from monarch_nb.rdma.data_plane import DataPlane, use
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.path import gone
from monarch_nb.rdma.paths.verbs.questions import Connect, Connected
from monarch_nb.rdma.question import Question

CONTROLLER = 0


class Wire:
    """Questions and answers by one socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()
        self._state = threading.Condition()
        self._found: dict[int, tuple[bool, Any]] = {}
        self._numbers = itertools.count()
        self._ended = False
        self.thread: threading.Thread | None = None

    def serve(self, answerer: Callable[[Any], Any], submit: Callable[[Callable[[], None]], None]) -> None:
        def read() -> None:
            while (message := self._receive()) is not None:
                kind, number, value = message
                if kind == "ask":
                    submit(lambda n=number, v=value: self._answer(answerer, n, v))
                else:
                    with self._state:
                        self._found[number] = (kind == "good", value)
                        self._state.notify_all()
            with self._state:
                self._ended = True
                self._state.notify_all()

        self.thread = threading.Thread(target=read, name="wire", daemon=True)
        self.thread.start()

    def ask(self, question: Question[Any] | Do, timeout_s: float) -> Any:
        handle = question.handle
        number = next(self._numbers)
        try:
            self._send(("ask", number, question))
        except OSError:
            raise gone(handle, "its owner has ended") from None
        with self._state:
            self._state.wait_for(lambda: self._ended or number in self._found, timeout_s)
            if number not in self._found:
                if self._ended:
                    raise gone(handle, "its owner has ended")
                raise TransferTimeout(f"no answer within {timeout_s:g} s")
            good, value = self._found.pop(number)
        if good:
            return value
        raise value if isinstance(value, RDMAError) else RDMAError(f"the owner says: {value}")

    def _answer(self, answerer: Callable[[Any], Any], number: int, question: Any) -> None:
        try:
            message = ("good", number, answerer(question))
        except RDMAError as error:
            message = ("bad", number, error)
        except Exception:
            message = ("bad", number, traceback.format_exc())
        self._send(message)

    def _send(self, message: tuple[str, int, Any]) -> None:
        data = pickle.dumps(message)
        with self._sending:
            self._end.sendall(struct.pack("!I", len(data)) + data)

    def _receive(self) -> tuple[str, int, Any] | None:
        head = self._exactly(4)
        data = head and self._exactly(struct.unpack("!I", head)[0])
        return pickle.loads(data) if data else None

    def _exactly(self, num: int) -> bytearray | None:
        found = bytearray(num)
        room = memoryview(found)
        while room:
            try:
                done = self._end.recv_into(room)
            except OSError:
                return None
            if not done:
                return None
            room = room[done:]
        return found

    def close(self) -> None:
        self._end.close()


@dataclass(frozen=True)
class Do:
    """What the test tells an owner to do; it's about no buffer."""

    do: str
    fields: dict[str, Any]
    handle: Handle | None = None
    to: ClassVar[str] = "test"


class SocketLink:
    """A `Link` of several wires, by the proc id at their other end."""

    def __init__(self, proc: int, label: str, wires: dict[int, Wire]) -> None:
        self.addresses = (("", proc),)
        self.label = label
        self._wires = wires

    def ask(self, question: Question[Any], timeout_s: float) -> Any:
        return self._wires[question.handle.owner.proc].ask(question, timeout_s)

    def serve(self, answerer: Callable[[Any], Any], submit: Callable[[Callable[[], None]], None]) -> None:
        for wire in self._wires.values():
            wire.serve(answerer, submit)


class Far:
    """A process that owns buffers, as the test sees it. Make all of them before any thread."""

    def __init__(self, proc: int, others: list[Far]) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            ours.close()
            for other in others:
                other.wire.close()
            _live(proc, theirs)
        theirs.close()
        self.proc = proc
        self.wire = Wire(ours)

    def __call__(self, do: str, timeout_s: float = 60.0, **fields: Any) -> Any:
        return self.wire.ask(Do(do, fields), timeout_s)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def end(self) -> int:
        self.wire._end.shutdown(socket.SHUT_RDWR)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class _Life:
    """What an owner does when the test tells it to."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self.kept: dict[int, tuple[Any, RDMABuffer]] = {}

    def __call__(self, question: Do) -> Any:
        return getattr(self, question.do)(**question.fields)

    def make(self, data: Any, kind: str = "array") -> RDMABuffer:
        if kind == "array":
            data = numpy.array(data)
        elif kind == "bytes":
            data = bytearray(data)
        elif kind == "read-only":
            data = bytes(data)
        else:
            found = empty(*data.shape, dtype=data.dtype.name, kind="array")
            found[...] = data
            data = found
        buffer = RDMABuffer(data)
        self.kept[buffer._handle.key] = (data, buffer)
        return buffer

    def make_part(self, data: Any, index: Any) -> RDMABuffer:
        buffer = RDMABuffer(data[index])
        self.kept[buffer._handle.key] = (data, buffer)
        return buffer

    def content(self, key: int) -> Any:
        return self.kept[key][0]

    def set(self, key: int, data: Any) -> None:
        self.kept[key][0][...] = data

    def drop(self, key: int) -> None:
        self.kept.pop(key)[1].drop()

    def forget_the_key_only(self, key: int) -> None:
        self.plane.regions.table.clear(self.kept[key][1]._handle.slot)

    def disconnect(self) -> None:
        self.plane.paths["verbs"].owner_side.disconnect_all()

    def be_deaf(self, deaf: bool) -> None:
        side = self.plane.paths["verbs"].owner_side
        if not deaf:
            del side._connect
            return

        def connect(question: Connect) -> Connected:
            found = type(side)._connect(side, question)
            side.disconnect_all()
            return found

        side._connect = connect

    def num_halves(self) -> int:
        return sum(map(len, self.plane.paths["verbs"].owner_side._queue_pairs.values()))

    def num_made(self, key: int) -> int:
        region = self.plane.regions.find(key)
        return len(region.made.get("verbs", {}))

    def modules(self) -> list[str]:
        import sys

        return list(sys.modules)


def _live(proc: int, end: socket.socket) -> None:
    """Be an owner until the other side closes; never returns."""
    code = 1
    try:
        wire = Wire(end)
        plane = DataPlane(SocketLink(proc, f"owner {proc}", {CONTROLLER: wire}))
        use(plane)
        plane.services[Do.to] = _Life(plane)
        wire.thread.join()
        plane.close()
        left = [t.name for t in threading.enumerate() if t.name.startswith("monarch_nb")]
        code = 3 if left else 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Pair:
    """This process and its owners, for the checks.

    Attributes:
        far: an owner.
        victims: more of them, to be killed.
    """

    def __init__(self, num_victims: int) -> None:
        all_: list[Far] = []
        for proc in range(1, 2 + num_victims):
            all_.append(Far(proc, all_))
        self.far, *self.victims = all_
        self.plane = DataPlane(SocketLink(CONTROLLER, "the test", {f.proc: f.wire for f in all_}))
        use(self.plane)

    @property
    def path(self) -> Any:
        return self.plane.paths["verbs"]

    def close(self) -> int:
        self.plane.close()
        return self.far.end()
