"""Executes the work of a rank's main thread: cells, functions, variables. Signals, CUDA and plots work here
as users expect.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from monarch_nb._cells import Namespace
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.cells import CellWork
from monarch_nb._protocol.process_group import RemakeGroup, StoreAddress
from monarch_nb._protocol.profiles import ProfileReport
from monarch_nb._protocol.registry import Handlers, handles
from monarch_nb._protocol.runs import numbers_of
from monarch_nb._protocol.shown import CellEnd
from monarch_nb._protocol.states import CellStatus
from monarch_nb._protocol.variables import VariableRow
from monarch_nb._protocol.work import Work
from monarch_nb._rank import collectives, environment, profiling, rendezvous, variables, workspace
from monarch_nb._rank.debugger import place
from monarch_nb._rank.mending import Mender, guard_handlers
from monarch_nb._rank.shell import CellShell, Diversion, describe_cell_error
from monarch_nb._rank.streams import flush_replaced
from monarch_nb._reload import RankReload
from monarch_nb._runtime.forked import end_if_forked
from monarch_nb._runtime.inbox import Inbox
from monarch_nb._shape import Shape, decode_extent
from monarch_nb._transport import process_context
from monarch_nb._transport.call import answer, answer_failure
from monarch_nb._transport.context import NO_CALL, CallContext, call_context
from monarch_nb._transport.failure import class_name, describe, encode_failure, message_of, trace_of
from monarch_nb._transport.pending import Body
from monarch_nb._transport.transport import TransportClosed
from monarch_nb._wire import address, codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.loaded import loaded
from monarch_nb._wire.message import Message

if TYPE_CHECKING:
    from monarch_nb._rank.main import Rank
    from monarch_nb._rank.shell import CellShell


_UNINTERRUPTIBLE = (Work.RUN, Work.REMAKE_GROUP, Work.START_RENDEZVOUS, Work.SET_ENVIRONMENT, Work.PROFILE)


UNHEARD_S = 0.1
"""Time after which a signal that has reached no user code has arrived too early."""

_LABELS: dict[str, bytes] = {Work.RUN: b"cell", Work.EXECUTE: b"function", Work.BIND: b"broadcast"}
_RUN = Work.RUN.encode()


class PlainAnswer(NamedTuple):
    """An answer to the controller without pickle: how a cell ended, or the address of a store."""

    payload: bytes
    failed: bool = False


def _cell_answer(end: CellEnd, seconds: float) -> PlainAnswer:
    """Return the end of a cell, encoded for the controller."""
    failed = end.status != CellStatus.OK
    plain = not failed and end.value is None
    body = b"" if plain else replace(end, seconds=seconds).as_json()
    return PlainAnswer(wire.CELL_SECONDS.pack(seconds) + body, failed)


def _place_of(error: BaseException) -> str:
    """Return the line that has raised."""
    trace = trace_of(error)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        ""
        if trace is None
        else (
            f", in {trace.tb_frame.f_code.co_name} ({place(trace.tb_frame.f_code.co_filename)}, line "
            f"{trace.tb_lineno})"
        )
    )


class Worker:
    """The worker of the main thread. The reading thread fills `inbox`.

    SIGINT reaches user code only: the handler raises while a piece of work runs, and does nothing before and
    after. What an interrupt is meant for is the host process' business: it sends one only to a rank on which
    the cell in question runs, and says so by message, too (`cancel`), in case the rank hasn't begun yet.
    """

    def __init__(self, rank: Rank) -> None:
        self._handlers = Handlers(self)
        self.rank = rank
        self.inbox: Inbox[Message] = Inbox()
        self.activity_slot = rank.page.main
        self.cancelled: set[int] = set()
        """Numbers of cells that shall not begin. Written by the reading thread."""
        self._shell: CellShell | None = None
        self._last_value: Any = None
        self._recording: profiling.CellRecording | None = None
        self._interruptible = False
        self._num_hits = 0
        """Number of interrupts that have reached the running cell."""
        self._ident = threading.get_ident()
        self.current: Message | None = None
        main_module = sys.modules["__main__"]
        self.namespace: Namespace = main_module.__dict__
        for name in [n for n in self.namespace if not n.startswith("__")]:
            del self.namespace[name]  # modules that the program had imported before it became this rank
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._show_unraisable = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable
        self._last_message = ""
        self._mender = Mender(rank.pipe, self._on_interrupt)

    def _on_interrupt(self, number: int, frame: Any) -> None:
        """Interrupt the running work, or do nothing without any. (SIG_IGN would be inherited by
        subprocesses.)
        """
        if not self._interruptible:
            return
        self._num_hits += 1
        if Diversion.handler is not None:
            Diversion.handler(frame)
        else:
            raise KeyboardInterrupt

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Repeat an interrupt that hit a finalizer or a callback: it ends there, and the code that it was
        meant for would continue.
        """
        current = self.current
        swallowed = unraisable.exc_type is not None and issubclass(unraisable.exc_type, KeyboardInterrupt)
        if not swallowed or current is None or threading.get_ident() != self._ident:
            self._show_unraisable(unraisable)
            return

        def again() -> None:
            if self.current is current:
                signal.pthread_kill(self._ident, signal.SIGINT)

        # Not at once: it would be raised in here, and end here.
        self.rank.transport.reader.call_at(time.monotonic() + UNHEARD_S, again)

    def cancel(self, n: int) -> None:
        """End a cell: if it hasn't begun, it won't; if it has, and the signal came too early to reach user
        code, send another.

        One that still waits behind other work is answered at once: that work isn't its own, and goes on.
        Called in the reading thread.
        """
        waiting = self.inbox.withdraw(lambda message: message.name == _RUN and message.origin == n)
        if waiting is not None:
            self._reply(waiting, _cell_answer(describe_cell_error(KeyboardInterrupt()), 0.0), 0)
            return
        self.cancelled.add(n)
        # The signal may be on its way: a second one would interrupt the code that handles the first.
        self.rank.transport.reader.call_at(time.monotonic() + UNHEARD_S, lambda: self._repeat_interrupt(n))

    def _repeat_interrupt(self, n: int) -> None:
        current = self.current
        if current is not None and current.name == _RUN and current.origin == n and not self._num_hits:
            signal.pthread_kill(self._ident, signal.SIGINT)

    def frame(self) -> FrameType | None:
        """Return the main thread's frame, if it's busy."""
        return sys._current_frames().get(self._ident) if self.current is not None else None

    def interrupt(self, src: int, ref: int) -> bool:
        """Interrupt the work that `src` waits for under `ref`; False if something else runs. Called in the
        reading thread.
        """
        current = self.current
        if current is None or (current.src, current.ref) != (src, ref):
            return False
        signal.pthread_kill(self._ident, signal.SIGINT)
        return True

    def serve(self) -> None:
        """Work until the inbox closes."""
        guard_handlers(lambda: self._interruptible, self._raised_between)
        transport = self.rank.transport
        if self.rank.spec.shared.place.runs_cells:
            self._prepare_for_cells()
        while (message := self.inbox.take_message(transport)) is not None:
            self._handle(message)

    def _prepare_for_cells(self) -> None:
        """Make what the first cell needs, before anybody waits for that: of its time, most is the memory that
        this process shares with its zygote until it writes there. The controller knows already that this
        rank is up. What can't be made now, the first cell makes, and says why.
        """
        with suppress(Exception):
            self._make_shell()
            assert self._shell is not None
            self._shell.rehearse()

    def _raised_between(self, error: BaseException) -> None:
        """Report that a user's signal handler has raised between two pieces of work."""
        self._say_once(
            f"raised between two cells: {class_name(error)}: {message_of(error)}{_place_of(error)}"
        )

    def _handle(self, message: Message) -> None:
        """Do the work that a message asks for and answer it, whatever user code does: the answer is the last
        step, and needs nothing of the user's.
        """
        call_context.set(CallContext(message.origin, message.slot, message.context, None, message.src))
        name = message.name.decode(errors="replace")
        flags = 0
        body: codec.Encoded | PlainAnswer
        try:
            result = self._work(name, message)
            body = result if isinstance(result, PlainAnswer) else codec.encode(result, "return value")
        except BaseException as error:
            end_if_forked(error)
            body, flags = self._failed(name, error), wire.ERROR
        end_if_forked()
        if (
            self.inbox.closed
        ):  # told to end meanwhile: that has ended this work, and its asker is told of the end
            return
        try:
            self._tidy_up(name)
            self._reply(message, body, flags)
        except TransportClosed:
            raise
        except BaseException as error:  # no memory for a large value, or a signal handler that raises
            self._reply(message, self._failed(name, error), wire.ERROR)
        call_context.set(NO_CALL)
        self.rank.transport.settle()

    def _failed(self, name: str, error: BaseException) -> codec.Encoded | PlainAnswer:
        """Return the answer of work that has raised."""
        self._interruptible = False
        if name == Work.RUN:  # this isn't the cell, but work before and after it
            return _cell_answer(describe_cell_error(error), 0.0)
        return encode_failure(describe(error, **process_context.whereabouts(), endpoint=name))

    def _tidy_up(self, name: str) -> None:
        """Repair what user code has broken, and report it, in the cell or call that is about to be
        answered.
        """
        if self.rank.debugger.in_use:
            self.rank.debugger.done()
        self.rank.transport.check_descriptors()
        self.activity_slot.end_activity()
        if name in _LABELS:  # user code
            self._write_message(self._mender.mend())

    def _write_message(self, texts: list[str]) -> None:
        """Write a message about user code to its output, whatever sys.stderr was replaced by."""
        if texts:
            stream = self.rank.pipe.streams["stderr"]
            stream.write("".join(f"{text}\n" for text in texts))
            stream.flush()

    def _work(self, name: str, message: Message) -> Any:
        handler = self._handlers.find(name)
        if handler is None:
            raise TypeError(f"a rank knows no work {name!r}")
        self.activity_slot.begin_activity(_LABELS.get(name) or name.encode(), message.origin)
        try:
            self.rank.pipe.burst.stop()
            self.current = message
            self._interruptible = name not in _UNINTERRUPTIBLE
            if self.rank.debugger.in_use:
                self.rank.debugger.arm()
            return handler.method(message)
        finally:
            self._interruptible = False
            self._mender.restore_builtins()
            self.current = None

    def _reply(self, message: Message, body: codec.Encoded | PlainAnswer, flags: int) -> None:
        if not message.ref:
            return
        transport = self.rank.transport
        if isinstance(body, PlainAnswer) or message.src == address.CONTROLLER:
            flags |= wire.ERROR if isinstance(body, PlainAnswer) and body.failed else 0
            frame = wire.pack(
                wire.REPLY,
                src=transport.me,
                dst=message.src,
                flags=flags,
                slot=message.slot,
                ref=message.ref,
                payload=body.payload,
            )
            transport.send(message.src, frame)
        else:
            try:
                answer(transport, message, body, flags)
            except MemoryError as error:
                where, name = process_context.whereabouts(), message.name.decode(errors="replace")
                answer_failure(transport, message, describe(error, **where, endpoint=name))

    def _fields(self, message: Message) -> Any:
        return Body(self.rank.transport, message).value()

    # --- the work

    @handles(Work.EXECUTE)
    def work_execute(self, message: Message) -> object:
        """Call a function."""
        if self.rank.actors.before_call is not None:
            self.rank.actors.before_call()
        function, args, kwargs = self._fields(message)
        return function(*args, **kwargs)

    @handles(Work.BIND)
    def work_bind(self, message: Message) -> None:
        """Define a variable for an array that is being written into this machine's shared memory."""
        from monarch_nb.rdma.broadcast.hosts import ArrayLocation
        from monarch_nb.rdma.broadcast.leader import bind_when_filled

        name, *location, barrier = self._fields(message)
        bind_when_filled(name, ArrayLocation(*location), barrier)

    @handles(Work.RUN)
    def work_run(self, message: Message) -> PlainAnswer:
        """Run a cell."""
        start = time.perf_counter()
        try:
            if self._shell is None:
                self._make_shell()
                start = time.perf_counter()  # this wasn't the cell's run time
            end = self._run_cell(message.origin, Body(self.rank.transport, message).read(CellWork))
        except (
            BaseException
        ) as error:  # an interrupt between two statements here, or a shell that can't be created
            self._interruptible = False
            self._mender.restore_builtins()
            end = describe_cell_error(error)
        return _cell_answer(end, time.perf_counter() - start)

    def _run_cell(self, n: int, work: CellWork) -> CellEnd:
        assert self._shell is not None
        self.rank.pipe.begin_origin(n)
        self._last_value = None
        self._num_hits = 0
        host = self.rank.spec.host.hostname
        self._recording = recording = profiling.begin_recording(n, work.profile, self.rank.rank, host)
        try:
            self._interruptible = True
            if n in self.cancelled:
                raise KeyboardInterrupt
            if work.script is not None:
                end = self._shell.run_script(work.script, self.rank.transport.me, work.number)
            else:
                self._write_message(self.rank.reloader.before_cell())
                end, self._last_value = self._shell.run(
                    work.source, work.number, None if recording is None else recording.end_recording
                )  # the profile covers the cell, not the display of its value
            self._flush_replaced()
        finally:
            self._interruptible = False
            self.cancelled.discard(n)
            if recording is not None:
                recording.end_recording()
        if self._num_hits and end.ename == "CancelledError":  # event loops are interrupted in this way
            return replace(end, ename="KeyboardInterrupt")
        return end

    def _flush_replaced(self) -> None:
        """Flush the user's replacements of the streams; report their errors, once."""
        self._say_once(flush_replaced(self.rank.pipe))

    def _say_once(self, text: str) -> None:
        """Print a warning about a lasting state, once."""
        if text and text != self._last_message:
            self._write_message([text])
            self._last_message = text

    @handles(Work.POST_MORTEM)
    def work_post_mortem(self, message: Message) -> bool:
        """Stop at the error of the last cell, or of an actor's last call; False if there is none."""
        found = self.last_error()
        if found is None:
            return False
        error, what = found
        self.rank.debugger.post_mortem(error, what=what)
        return True

    def last_error(self) -> tuple[BaseException, str] | None:
        """Return the last error here, and its origin, while its frames are kept."""
        found = [
            (a.error_when, a.last_error, a.name)
            for a in list(self.rank.actors.actors.values())
            if a.last_error is not None
        ]
        shell = self._shell
        if shell is not None and shell.last_error is not None:
            found.append((shell.error_when, shell.last_error, f"cell In [{shell.error_number}]"))
        if not found:
            return None
        _, error, what = max(found, key=lambda each: each[0])
        return error, what

    @handles(Work.CELL_VALUE)
    def work_cell_value(self, message: Message) -> Any:
        """Return the object that the last cell's last expression gave."""
        return self._last_value

    @handles(Work.PROFILE)
    def work_profile(self, message: Message) -> ProfileReport | None:
        """Return the profile of a cell; None if there's none: it didn't begin here, or another one has
        followed.
        """
        recording = self._recording
        return recording.report() if recording is not None and recording.n == self._fields(message) else None

    @handles(Work.ENVIRONMENT)
    def work_environment(self, message: Message) -> dict[str, dict[str, str]]:
        """Return the environment that this rank runs in; see `environment.describe`."""
        return environment.describe(self._fields(message))

    @handles(Work.REMAKE_GROUP)
    def work_remake_group(self, message: Message) -> None:
        """Create the default process group again after an abort, or with other ranks."""
        collectives.remake(Body(self.rank.transport, message).read(RemakeGroup), self.rank.rank)

    def _make_shell(self) -> None:
        self.namespace.update(self._place())
        self._shell = CellShell(self.namespace, self.rank.pipe, self._mender.restore_builtins)
        self._mender.learn()

    def renumbered(self) -> None:
        """Update the variables that show cells the rank's place, after the rank has got another number."""
        if self._shell is not None:
            self.namespace.update(self._place())

    def _place(self) -> dict[str, Any]:
        """Return the names that cells have for the rank's place: `point`, `mesh` and, with torch,
        `device`.
        """
        from monarch_nb.actor.placement import Placement
        from monarch_nb.actor.proc_mesh import ProcMesh

        spec = self.rank.spec
        extent, where = decode_extent(spec.group.extent), spec.shared.place
        mesh = ProcMesh(
            Placement(numbers_of(where.procs), Shape.full(extent), spec.group.group, numbers_of(where.hosts))
        )
        found: dict[str, Any] = {"point": extent.point(self.rank.rank), "mesh": mesh}
        torch = loaded("torch")
        if torch is not None:
            found["device"] = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return found

    @handles(Work.PUSH)
    def work_push(self, message: Message) -> None:
        """Set variables of the cells' namespace."""
        self.namespace.update(self._fields(message))

    @handles(Work.PULL)
    def work_pull(self, message: Message) -> Namespace:
        """Return variables of the cells' namespace."""
        return self.variables(self._fields(message))

    def variables(self, names: Sequence[str]) -> Namespace:
        """Return variables of the cells' namespace.

        Raises:
            NameError: naming those that aren't defined.
        """
        missing = [n for n in names if n not in self.namespace]
        if missing:
            raise variables.not_defined(missing, self.namespace)
        return {n: self.namespace[n] for n in names}

    @handles(Work.VARS)
    def work_vars(self, message: Message) -> list[VariableRow]:
        """Return a row about each of the user's variables, or those that are named."""
        names = self._fields(message) or variables.user_names(self.namespace)
        return [variables.describe(n, self.namespace[n]) for n in names if n in self.namespace]

    @handles(Work.LEAF_DIGESTS)
    def work_leaf_digests(self, message: Message) -> dict[str, str]:
        """Return a digest of each part of a variable."""
        return variables.leaf_digests(self._look_up(self._fields(message)))

    @handles(Work.LEAF_AT)
    def work_leaf_at(self, message: Message) -> Any:
        """Return one part of a variable."""
        name, path = self._fields(message)
        try:
            return variables.leaf_at(self._look_up(name), path)
        except KeyError:
            return "<missing>"

    def _look_up(self, name: str) -> Any:
        """Return a variable, or an attribute of one: `model.fc`."""
        first, *rest = name.split(".")
        if first not in self.namespace:
            raise variables.not_defined([first], self.namespace)
        value = self.namespace[first]
        for attribute in rest:
            value = getattr(value, attribute)
        return value

    @handles(Work.ACTORS)
    def work_actors(self, message: Message) -> list[str]:
        """Return the names of the actors that live here."""
        return [r.name for r in list(self.rank.actors.actors.values()) if r.name and r.failure is None]

    @handles(Work.ACTOR)
    def work_actor(self, message: Message) -> Any:
        """Return the handle of the actor mesh that an actor here belongs to; of several of a name, the
        youngest.
        """
        name = self._fields(message)
        return [
            r.mesh for r in list(self.rank.actors.actors.values()) if r.name == name and r.failure is None
        ][-1]

    @handles(Work.RELOAD_CLASS)
    def work_reload_class(self, message: Message) -> int:
        """Give living actors of an older class of that name the new one; return how many there were."""
        qualname, cls = self._fields(message)
        runners = [
            r for r in list(self.rank.actors.actors.values())
            if r.instance is not None and type(r.instance).__qualname__ == qualname
        ]  # fmt: skip
        for runner in runners:
            runner.reload(cls)
        return len(runners)

    @handles(Work.RELOAD)
    def work_reload(self, message: Message) -> RankReload:
        """Have modules run what their files hold, or say which would be reloaded."""
        request = self._fields(message)
        workspace.adopt(request.elsewhere, self.rank.spec.group.cwd)
        return self.rank.reloader.reload(request)

    @handles(Work.COMPLETE)
    def work_complete(self, message: Message) -> list[str]:
        """Return the completions of a name or an attribute, in the cells' namespace."""
        return variables.complete(self.namespace, self._fields(message))

    @handles(Work.LOOK_AT)
    def work_look_at(self, message: Message) -> VariableRow | None:
        """Return the row that `NAME?` shows of a name here, or (is_brief) the columns that may differ between
        ranks; None if there's no such name.
        """
        name, is_brief = self._fields(message)
        try:
            value = self._look_up(name)
        except Exception:  # a property may raise anything
            return None
        return variables.glance(name, value) if is_brief else variables.look_at(name, value)

    @handles(Work.SET_ENVIRONMENT)
    def work_set_environment(self, message: Message) -> None:
        """Set environment variables; each rank may have its own."""
        per_rank = self._fields(message)
        os.environ.update(per_rank[message.slot] if isinstance(per_rank, list) else per_rank)
        self.rank.reloader.read_mode()

    @handles(Work.START_RENDEZVOUS)
    def work_start_rendezvous(self, message: Message) -> PlainAnswer:
        """Start a store at which all ranks can meet; return its address."""
        return PlainAnswer(encode(StoreAddress(*rendezvous.start(rendezvous.GROUP))))
