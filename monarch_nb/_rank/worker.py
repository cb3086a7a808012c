"""What runs on a rank's main thread: cells, functions, variables. Signals, CUDA and plots work here as users expect."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb._post import here
from monarch_nb._post.context import NO_CALL, CallContext, call_context
from monarch_nb._post.failure import describe, encode_failure
from monarch_nb._post.pending import Body
from monarch_nb._rank.inbox import Inbox
from monarch_nb._wire import codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.message import Message

if TYPE_CHECKING:
    from monarch_nb._rank.main import Rank
    from monarch_nb._rank.shell import CellShell


class Worker:
    """The main thread's work. `inbox` is filled by the reading thread."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.inbox = Inbox()
        self.namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self.busy_with = ""
        self._shell: CellShell | None = None
        main_module = sys.modules["__main__"]
        main_module.__dict__.update({k: v for k, v in self.namespace.items() if k != "__builtins__"})
        self.namespace = main_module.__dict__
        signal.signal(signal.SIGINT, _ignore)

    def serve(self) -> None:
        """Work until the inbox closes."""
        office = self.rank.office
        while True:
            try:
                message = self.inbox.take(office)
                if message is None:
                    return
                self._handle(message)
            except KeyboardInterrupt:
                continue  # came between two pieces of work

    def _handle(self, message: Message) -> None:
        call_context.set(CallContext(message.origin, message.slot, message.context, None, message.src))
        name = message.name.decode()
        work = getattr(self, "work_" + name, None)
        try:
            if work is None:
                raise TypeError(f"a rank knows no work {name!r}")
            self.busy_with = name
            signal.signal(signal.SIGINT, signal.default_int_handler)
            result = work(message)
            signal.signal(signal.SIGINT, _ignore)
            body = codec.encode(result, "return value")
        except BaseException as error:
            signal.signal(signal.SIGINT, _ignore)
            body = encode_failure(describe(error, **here.whereabouts(), endpoint=name))
            self._reply(message, body, wire.ERROR)
        else:
            self._reply(message, body, 0)
        finally:
            self.busy_with = ""
            call_context.set(NO_CALL)
            self.rank.office.settle()
            sys.stdout.flush()

    def _reply(self, message: Message, body: codec.Encoded, flags: int) -> None:
        if message.ref:
            self.rank.office.post(
                message.src, wire.REPLY, body, flags=flags, slot=message.slot, ref=message.ref
            )

    def _fields(self, message: Message) -> Any:
        return Body(self.rank.office, message).value()

    # --- the work

    def work_execute(self, message: Message) -> object:
        """Call a function."""
        function, args, kwargs = self._fields(message)
        return function(*args, **kwargs)

    def work_run(self, message: Message) -> dict[str, Any]:
        """Run a cell."""
        fields = self._fields(message)
        if self._shell is None:
            self._make_shell()
        assert self._shell is not None
        pipe = self.rank.pipe
        pipe.begin(message.origin)
        try:
            ended = self._shell.run(fields["source"], fields["number"])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            pipe.end(message.origin)
            pipe.begin(0)
        value = ended.pop("object")
        if fields["want_value"] and ended["status"] == "ok":
            ended["object"] = value
        return ended

    def _make_shell(self) -> None:
        from monarch_nb._rank.shell import CellShell

        self.namespace.update(self._place())
        self._shell = CellShell(self.namespace, self.rank.pipe)

    def _place(self) -> dict[str, Any]:
        """Return what cells know of where they run: `point`, `mesh` and, with torch, `device`."""
        from monarch_nb._shape import Shape
        from monarch_nb.actor.context import decode_extent
        from monarch_nb.actor.proc_mesh import ProcMesh

        spec = self.rank.spec
        extent = decode_extent(spec["extent"])
        mesh = ProcMesh(spec["group"], spec["procs"], Shape.full(extent), tuple(spec["hosts"]))
        found: dict[str, Any] = {"point": extent.point(self.rank.rank), "mesh": mesh}
        torch = sys.modules.get("torch")
        if torch is not None:
            found["device"] = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return found

    def work_push(self, message: Message) -> None:
        """Set variables of the cells' namespace."""
        self.namespace.update(self._fields(message))

    def work_pull(self, message: Message) -> dict[str, Any]:
        """Return variables of the cells' namespace."""
        names = self._fields(message)
        missing = [n for n in names if n not in self.namespace]
        if missing:
            raise NameError(f"name {', '.join(map(repr, missing))} is not defined on rank {self.rank.rank}")
        return {n: self.namespace[n] for n in names}

    def work_set_environment(self, message: Message) -> None:
        """Set environment variables; each rank may have its own."""
        per_rank = self._fields(message)
        os.environ.update(per_rank[message.slot] if isinstance(per_rank, list) else per_rank)

    def work_free_address(self, message: Message) -> tuple[str, int]:
        """Return this host's address and a free tcp port, for a rendezvous."""
        return free_address()


def _ignore(number: int, frame: Any) -> None:
    """An interrupt that comes when nothing runs concerns nobody. (SIG_IGN would be inherited by subprocesses.)"""


def free_address() -> tuple[str, int]:
    """Return an address of this machine at which others find it, and a tcp port that's free just now."""
    import socket

    address = "127.0.0.1"
    with suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            address = "127.0.0.1"
            probe.bind((address, 0))
        return address, probe.getsockname()[1]
