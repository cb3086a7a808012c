"""Actors of this rank: each has its own thread and handles one message at a time, in the order of each
sender.

An actor without async endpoints waits for mail as a background waiter of the reader, so that its thread
usually reads the socket itself and runs the endpoint with no hand-over. An actor with async endpoints runs an
event loop on its thread, always, so what it starts in the background goes on between messages.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec.structs import replace

from monarch_nb._protocol import calls
from monarch_nb._protocol.failure import ActorFailed, Failure
from monarch_nb._protocol.healing import Respawn, Resume
from monarch_nb._protocol.states import StopReason
from monarch_nb._runtime import log_names
from monarch_nb._runtime.actor_spec import ActorSpec
from monarch_nb._runtime.awaiting import frames_of
from monarch_nb._runtime.checkpoints import KINDS, Checkpoints
from monarch_nb._runtime.forked import end_if_forked
from monarch_nb._runtime.inbox import Inbox
from monarch_nb._runtime.kept import keep
from monarch_nb._runtime.supervision import MeshFailure
from monarch_nb._shape import decode_extent
from monarch_nb._transport import process_context
from monarch_nb._transport.call import answer, answer_failure
from monarch_nb._transport.context import CallContext, call_context
from monarch_nb._transport.failure import describe
from monarch_nb._transport.pending import Body
from monarch_nb._transport.port import Port
from monarch_nb._transport.process_context import CallPlace
from monarch_nb._transport.transport import TransportClosed
from monarch_nb._wire import codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.message import Message
from monarch_nb.exceptions import ActorAborted

if TYPE_CHECKING:
    from monarch_nb._runtime.actor_host import ActorHost


CHILDREN_S = 10.0
"""How long an ending actor waits for its own actors to end first."""
PREDECESSOR_S = 10.0
"""How long a re-created actor waits for its predecessor to end."""


class CallDebugger(Protocol):
    """The interface to a process' debugger for code that runs calls."""

    in_use: bool
    on_error: bool

    def arm(self) -> None:
        """Arm the calling thread for new breakpoints."""

    def done(self) -> None:
        """End stepping in the calling thread, whose cell or call has ended."""

    def interrupt(self, ident: int) -> bool:
        """Interrupt a thread that has stopped; False if it hasn't."""

    def post_mortem(self, error: BaseException, reason: StopReason = ..., what: str = ...) -> None:
        """Stop where an error was raised."""


class FailureNotice(NamedTuple):
    """The notice to an actor of a failure.

    Attributes:
        failure: the failure.
        hook: this actor's `__supervise__`, if it shall be asked.
        next: who is told if the hook doesn't handle it: proc and actor (0: none).
        actor_id: id of the failed actor, as the owner knows it.
    """

    failure: Failure
    hook: Any
    next: tuple[int, int]
    actor_id: int


class Method:
    """One endpoint of an actor instance, looked up once."""

    __slots__ = ("function", "is_async", "is_concurrent", "label", "wants_port")

    def __init__(self, instance: Any, name: str) -> None:
        self.label = f"{type(instance).__name__}.{name}".encode()
        options = getattr(inspect.getattr_static(type(instance), name, None), "options", None)
        self.function: Callable[..., Any] = getattr(instance, name)
        self.is_async = inspect.iscoroutinefunction(self.function)
        self.wants_port = bool(options and options.explicit_response_port)
        self.is_concurrent = bool(options and options.concurrent)


class ActorRunner:
    """One actor: instance, inbox and thread. Only that thread touches the instance."""

    def __init__(self, host: ActorHost, spawn: Message, before: ActorRunner | None = None) -> None:
        self.host = host
        self.actor_id = spawn.target
        self.creator: tuple[int, int] = (spawn.src, 0)
        self.name = ""
        self.created_by: Any = None
        """The actor's creator (`actor.ownership.CreatorInstance`)."""
        self.proc_mesh: Any = None
        self.inbox: Inbox[Message] = Inbox()
        self.instance: Any = None
        self.failure: Failure | None = None
        self.mesh: Any = None
        self.cls: type | None = None
        """The actor's class, once it has arrived; a reload may replace it."""
        self.activity_slot = host.page.acquire_slot()
        self.label = b""
        """Name of the endpoint called last."""
        self._num_running = 0
        self.last_error: BaseException | None = None
        """The error of the last call: its frames are kept for the debugger until the next call."""
        self.error_when = 0.0
        self.checkpoints: Checkpoints | None = None
        self._resume: Resume | None = None
        """The checkpoint that it is restored from."""
        self._before = before
        """The predecessor at this place, which ends before this actor begins."""
        self._spawn: Message | None = spawn
        self._methods: dict[bytes, Method] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended_with: BaseException | None = None
        self._aborted: ActorAborted | None = None
        self._children: list[Any] = []
        """Meshes that this actor has spawned, which end with it."""
        self.spawned_for: dict[int, tuple[int, int]] = {}
        """Other owners of actors that this one has spawned: proc and actor (0: none), by actor id."""
        self._when_ended: list[Callable[[], None]] | None = []
        """Called after its clean-up; None afterwards."""
        self._supervising: asyncio.Lock | None = None
        # The reading thread may be handling a message: keep the body, which owns its buffers.
        self._body = Body(host.transport, spawn)
        self.current: Message | None = None
        """The call that user code handles at present, on this actor's own thread."""
        self._ident = 0
        self._was_interrupted = False
        self._interrupting = threading.Lock()
        self._task_of: dict[tuple[int, int], asyncio.Task[Any]] = {}
        self.thread = threading.Thread(target=self._live, name=f"actor-{self.actor_id:x}", daemon=True)
        self.thread.start()

    # --- life

    def _live(self) -> None:
        self._ident = threading.get_ident()
        log_names.install()
        try:
            with suppress(TransportClosed):  # the process ends while this actor is busy
                self._run()
        finally:
            self.host.has_ended(self)
            with self._interrupting:
                callbacks, self._when_ended = self._when_ended or [], None
            for callback in callbacks:
                with suppress(TransportClosed):
                    callback()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call `callback` when this actor has cleaned up: at once if it has, else in its thread."""
        with self._interrupting:
            if self._when_ended is not None:
                self._when_ended.append(callback)
                return
        callback()

    def _run(self) -> None:
        spawn, self._spawn = self._spawn, None
        assert spawn is not None
        context = CallContext(spawn.origin, spawn.slot, spawn.context, self, spawn.src)
        call_context.set(context)
        try:
            spec = self._spawn_spec(spawn)
        except BaseException as error:
            self._fail(error, spawn, "__init__")
            self._serve()
            return
        del self._body
        self.name = spec["name"]
        self.creator = spec["creator"]
        self.created_by, self.proc_mesh = spec["creator_instance"], spec["proc_mesh"]
        self.mesh, self.cls = spec["mesh"], spec["class"]
        self.thread.name = f"actor-{self.name}"
        if has_async(spec["class"]):
            asyncio.run(self._live_async(spec, spawn))
        else:
            self._construct(spec, spawn)
            self._serve()
        self._clean_up()

    def _spawn_spec(self, spawn: Message) -> ActorSpec:
        before, self._before = self._before, None
        if before is not None:
            before.thread.join(PREDECESSOR_S)
            before.instance = None
        if self.host.before_call is not None:
            self.host.before_call()
        if spawn.name == calls.SPAWN:
            found: ActorSpec = self._body.value()
            return found
        respawn: Respawn = self._body.read(Respawn)
        self._resume = respawn.resume
        found = codec.from_bytes(respawn.spec)
        return found

    def _set_up_checkpoints(self, size: int, slot: int) -> None:
        """Have the new instance saved; restore it from the checkpoint, if there is one."""
        instance = self.instance
        if not hasattr(type(instance), "checkpoint_state"):
            return
        if instance.checkpoint_state not in KINDS:
            raise ValueError(
                f"checkpoint_state is one of {', '.join(map(repr, KINDS))}, not {instance.checkpoint_state!r}"
            )
        known = self.host.checkpoints
        found = known.get(self.actor_id)
        if found is None or not found.is_at(slot, size):
            found = known[self.actor_id] = Checkpoints(
                self.host.transport, self.actor_id, self.name, slot, size, self.host.checkpoint_epochs
            )
        self.checkpoints = found
        found.kind, found.every = instance.checkpoint_state, instance.checkpoint_every
        found.keep, found.directory = instance.checkpoint_keep, instance.checkpoint_dir
        resume = self._resume
        if resume is not None:
            self.host.checkpoint_epochs[self.actor_id] = resume.epoch
        if resume is not None and resume.version is not None:
            found.restore(instance, resume.version, resume)
        elif found.every:
            found.prepare(instance)

    def _construct(self, spec: ActorSpec, spawn: Message) -> None:
        self.activity_slot.begin_activity(f"{spec['class'].__name__}.__init__".encode(), spawn.origin)
        try:
            self.instance = spec["class"].__new__(spec["class"])
            self.instance.__init__(*spec["args"], **spec["kwargs"])
            self._set_up_checkpoints(decode_extent(spawn.context).nelements, spawn.slot)
        except BaseException as error:
            self._fail(error, spawn, "__init__")
            return
        finally:
            self.activity_slot.end_activity()
        if spawn.ref:
            self._answer(spawn, None)

    def _serve(self) -> None:
        transport = self.host.transport
        while (message := self.inbox.take_message(transport)) is not None:
            self._handle(message)

    async def _live_async(self, spec: ActorSpec, spawn: Message) -> None:
        loop = asyncio.get_running_loop()
        mail = asyncio.Event()

        def on_mail(message: Message | None) -> None:
            if message is not None:
                if (
                    message.name == calls.SUPERVISE
                ):  # this doesn't wait for the running endpoint: that may wait for the failed actor
                    _call_soon(loop, lambda: self._supervise_soon(message))
                    return
                self.inbox.add(message)
            _call_soon(loop, mail.set)

        self.inbox.hook = on_mail
        self._construct(spec, spawn)
        while True:
            message = self.inbox.take_now()
            if message is None:
                if self.inbox.closed:
                    break
                mail.clear()
                if not self.inbox.ready:
                    await mail.wait()
                continue
            await self._handle_async(message)
        for task in self._tasks:
            task.cancel()

    # --- owned meshes

    def owns(self, mesh: Any) -> None:
        """Record that this actor has spawned a mesh."""
        self._children.append(mesh)

    def disowns(self, mesh: Any) -> None:
        """Forget a mesh that this actor owned."""
        with suppress(ValueError):
            self._children.remove(mesh)

    def _stop_children(self) -> Iterator[Any]:
        """End the children of this actor, the newest first; yield the futures of their ends."""
        while self._children:
            child = self._children.pop()
            with suppress(Exception):  # the child may be gone, with its process or its mesh
                future = child.stop(f"its owner {self.name!r} has ended")
                future.drop()  # nobody is told of a child that couldn't be stopped
                yield future

    def _end_children(self) -> None:
        """End the meshes that this actor owns, one after the other: actors clean up before their processes
        exit.
        """
        deadline = time.monotonic() + CHILDREN_S
        for future in self._stop_children():
            with suppress(Exception):
                future.get(max(0.0, deadline - time.monotonic()))

    def _clean_up(self) -> None:
        self._end_children()
        self.host.page.release_slot(self.activity_slot)
        hook = getattr(self.instance, "__cleanup__", None)
        if hook is None:
            return
        try:
            result = hook(self._ended_with)
            if inspect.isawaitable(result):
                asyncio.run(_finish(result))
        except BaseException:
            traceback.print_exc()

    def stop(self, reason: BaseException | None = None) -> None:
        """Let the actor end after the message that it's handling."""
        self._ended_with = reason
        self.inbox.close(self.host.transport)

    def abort(self, reason: str) -> None:
        """Let the actor fail after the message that it's handling."""
        self._aborted = ActorAborted(reason or f"{self.name} has aborted itself")
        me = self.host.transport.me
        frame = wire.pack(wire.CALL, src=me, dst=me, target=self.actor_id, name=calls.ABORT)
        self.inbox.put_first(wire.unpack(frame), self.host.transport)

    def _abort(self, _message: Message) -> None:
        if self._aborted is not None:
            self._fail(self._aborted, None, "")

    def frames(self) -> list[FrameType]:
        """Return the frames of user code here, innermost first: of its thread, or of each call that
        awaits.
        """
        tasks = list(self.tasks().values())
        if tasks:
            return [frame for task in tasks for frame in reversed(frames_of(task))]
        frame = sys._current_frames().get(self._ident) if self.current is not None else None
        return [frame] if frame is not None else []

    @property
    def has_loop(self) -> bool:
        """Return whether the actor's messages are handled in an event loop."""
        return self.inbox.hook is not None

    def tasks(self) -> dict[tuple[int, int], asyncio.Task[Any]]:
        """Return the calls that await, by the caller and its ref."""
        return dict(self._task_of)

    def renew_methods(self) -> None:
        """Look methods up again, since the class was changed. Called in another thread."""
        self._methods = {}

    def reload(self, cls: type) -> None:
        """Give the living instance a new class: new methods, the same state. Called in another thread.

        Raises:
            TypeError: if the new class can't take its place.
        """
        if has_async(cls) and not self.has_loop:
            raise TypeError(
                f"{cls.__name__} has async methods now, but the actor {self.name!r} was started "
                "without an event loop: spawn it anew"
            )
        self.instance.__class__ = self.cls = cls
        self.renew_methods()
        if self.mesh is not None:
            self.mesh._reload(cls)

    # --- messages

    def _method(self, name: bytes) -> Method:
        method = self._methods.get(name)
        if method is None:
            method = self._methods[name] = Method(self.instance, name.decode(errors="replace"))
        return method

    def _handle(self, message: Message) -> None:
        call_context.set(CallContext(message.origin, message.slot, message.context, self, message.src))
        if self.failure is not None:
            self._refuse(message)
            return
        if message.name in _OWN_MESSAGES:
            _OWN_MESSAGES[message.name](self, message)
            return
        if self.last_error is not None:
            self.last_error = None
        try:
            try:
                self.current = message
                if self.host.before_call is not None:
                    self.host.before_call()
                method = self._method(message.name)
                self.activity_slot.begin_activity(method.label, message.origin)
                self.label = method.label
                debugger = self.host.debugger
                if debugger is not None and debugger.in_use:
                    debugger.arm()
                args, kwargs = self._arguments(message, method)
                if method.is_async:
                    raise TypeError(
                        f"async endpoint {message.name.decode()!r} of an actor that has no event loop"
                    )
                result = method.function(*args, **kwargs)
            finally:
                self._left()
        except BaseException as error:
            self._left()  # an interrupt may have come in the `finally`
            self._raised(error, message)
            return
        del args, kwargs  # so that their buffers are released with the answer
        self._answer_call(message, method, result)

    # --- interrupts

    def interrupt(self, src: int, ref: int) -> bool:
        """Interrupt the call that `src` waits for under `ref`; False if something else runs. Called in the
        reading thread.

        A sync endpoint gets a KeyboardInterrupt between two bytecodes of its thread (a blocking C call has to
        return first); an async one is cancelled where it awaits.
        """
        task = self._task_of.get((src, ref))
        debugger = self.host.debugger
        if debugger is not None and self._handles(src, ref) and debugger.interrupt(self._ident):
            return True
        if task is not None:
            _call_soon(task.get_loop(), task.cancel)
            return True
        with self._interrupting:
            self._was_interrupted = True  # before the look at `current`: see `_left`
            current = self.current
            if current is None or (current.src, current.ref) != (src, ref):
                self._was_interrupted = False
                return False
            if self._ident:
                _raise_in_thread(self._ident, KeyboardInterrupt)
                # the thread may be parked until an answer comes
                self.host.transport.reader.interrupt_waiters()
                for transport in process_context.guest_transports:
                    with suppress(TransportClosed):
                        transport.reader.interrupt_waiters()
                        transport.poke()  # or it may wait in C for an answer of another mesh
            return True

    def _handles(self, src: int, ref: int) -> bool:
        """Return whether this actor handles a call."""
        current = self.current
        return (src, ref) in self._task_of or (
            current is not None and (current.src, current.ref) == (src, ref)
        )

    def _left(self) -> None:
        """Record that user code has been left: no interrupt may come any more, and one on its way is
        withdrawn.
        """
        self.current = None
        debugger = self.host.debugger
        if debugger is not None and debugger.in_use:
            debugger.done()
        self.activity_slot.end_activity()
        if self._was_interrupted:
            with self._interrupting:
                _raise_in_thread(self._ident, None)
                self._was_interrupted = False

    async def _handle_async(self, message: Message) -> None:
        if self.failure is not None:
            self._refuse(message)
            return
        if message.name == calls.SUPERVISE:
            self._supervise_soon(message)
            return
        if message.name in _OWN_MESSAGES:
            _OWN_MESSAGES[message.name](self, message)
            return
        try:
            if self.host.before_call is not None:
                self.host.before_call()
            method = self._method(message.name)
        except BaseException as error:
            self._raised(error, message)
            return
        if method.is_concurrent:
            task = asyncio.get_running_loop().create_task(self._await(message, method))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif method.is_async:
            await self._await(message, method)
        else:
            self._handle(message)

    async def _await(self, message: Message, method: Method) -> None:
        call_context.set(CallContext(message.origin, message.slot, message.context, self, message.src))
        self._num_running += 1
        self.label = method.label
        self.activity_slot.begin_activity(method.label, message.origin)
        try:
            args, kwargs = self._arguments(message, method)
            result = method.function(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await self._interruptible(message, result)
        except BaseException as error:
            self._raised(error, message)
            return
        finally:
            self._num_running -= 1
            if not self._num_running:
                self.activity_slot.end_activity()
        del args, kwargs
        self._answer_call(message, method, result)

    async def _interruptible(self, message: Message, result: Any) -> Any:
        """Await the result of an endpoint; an interrupt counts as a KeyboardInterrupt of the endpoint, not of
        its actor.
        """
        task = asyncio.current_task()
        assert task is not None
        key = (message.src, message.ref)
        self._task_of[key] = task
        try:
            return await result
        except asyncio.CancelledError:
            if not task.uncancel():
                raise KeyboardInterrupt from None
            raise
        finally:
            del self._task_of[key]

    def _answer_call(self, message: Message, method: Method, result: object) -> None:
        """Answer a call in any case: a result that can't be sent is a failure of the call."""
        end_if_forked()
        try:
            self._finish_call(message, method, result)
        except TransportClosed:
            raise
        except BaseException as error:  # no memory for a large value, or a result whose pickling raises
            self._raised(error, message)

    def _finish_call(self, message: Message, method: Method, result: object) -> None:
        if message.flags & wire.KEEP:
            keep(message.ref, result)
        elif message.ref and not method.wants_port:
            self._answer(message, result)
        elif message.origin in (transport := self.host.transport).unsettled:
            transport.mark_output(message.origin)  # nobody waits, but here its output ends
        self._count(message)
        self.host.transport.settle()

    def _arguments(self, message: Message, method: Method) -> tuple[Any, dict[str, Any]]:
        args: Any = ()
        kwargs: dict[str, Any] = {}
        if not message.flags & wire.EMPTY:
            args, kwargs = Body(self.host.transport, message).value()
        if method.wants_port:
            args = (Port(message.src, message.ref, message.slot, self.host.transport.mesh), *args)
        return args, kwargs

    def _answer(self, message: Message, result: object) -> None:
        transport = self.host.transport
        src = message.src
        if result is None:
            frame = wire.pack_plain(
                wire.REPLY, wire.EMPTY, message.slot, transport.me, src, message.ref, 0,
                transport.printed_for(message.origin), transport.releases_for(src), b"", b"",
            )  # fmt: skip
            transport.send(src, frame)
            return
        try:
            body = codec.encode(result, "return value")
        except codec.CannotPickle as error:
            self._raised(error, message)
            return
        try:
            answer(transport, message, body, 0, transport.releases_for(src))
        except MemoryError as error:  # no shared memory left
            self._raised(error, message)

    # --- checkpoints

    def _count(self, message: Message, *, failed: bool = False) -> None:
        """Count a completed call, and save the state if it's due."""
        if self.checkpoints is None or message.name in _UNCOUNTED:
            return
        try:
            self.checkpoints.after_call(self.instance, failed=failed)
        except Exception as error:  # its state can't be taken: that's the actor's failure, not the call's
            self._fail(error, None, "state_dict")

    def _save(self, message: Message) -> None:
        """Save the state before the host is taken away; answers with the checkpoint's directory."""
        try:
            path = self.checkpoints.save_now(self.instance) if self.checkpoints is not None else ""
        except Exception as error:
            answer_failure(self.host.transport, message, describe(error, **self._where("state_dict")))
        else:
            self._answer(message, path)

    # --- failure

    def _supervise(self, message: Message) -> None:
        """Ask this actor to handle a failure of something that it owns; else report the failure to its own
        owner.
        """
        failure, hook, above, actor_id = self._received_failure(message)
        handled: Any = False
        if hook is not None:
            try:
                handled = hook(MeshFailure.from_failure(failure))
                if inspect.isawaitable(handled):
                    handled = _run_apart(handled)
            except Exception as error:
                failure = describe(error, **self._where("__supervise__"))
        if not handled:
            self.host.report_failure(above, actor_id, failure)

    def _received_failure(self, message: Message) -> FailureNotice:
        """Return the failure in a message, and who is asked about it."""
        failed: ActorFailed = Body(self.host.transport, message).read(ActorFailed)
        asked_for_it = self.spawned_for.get(failed.actor_id)
        if asked_for_it is not None:
            return FailureNotice(failed.failure, None, asked_for_it, failed.actor_id)
        hook = None if self.failure is not None else getattr(self.instance, "__supervise__", None)
        return FailureNotice(failed.failure, hook, self.creator, self.actor_id)

    def _supervise_soon(self, message: Message) -> None:
        """Ask this actor about a failure while its endpoints await. Called in its event loop."""
        task = asyncio.get_running_loop().create_task(self._supervise_async(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supervise_async(self, message: Message) -> None:
        if self._supervising is None:
            self._supervising = asyncio.Lock()
        async with self._supervising:  # one after the other, as they came
            call_context.set(CallContext(message.origin, message.slot, message.context, self, message.src))
            failure, hook, above, actor_id = self._received_failure(message)
            handled: Any = False
            if hook is not None:
                try:
                    handled = hook(MeshFailure.from_failure(failure))
                    if inspect.isawaitable(handled):
                        handled = await handled
                except Exception as error:
                    failure = describe(error, **self._where("__supervise__"))
            if not handled:
                self.host.report_failure(above, actor_id, failure)

    def _where(self, endpoint: str) -> CallPlace:
        return {**process_context.whereabouts(), "actor": self.name, "endpoint": endpoint}

    def _raised(self, error: BaseException, message: Message) -> None:
        """Tell the caller, or the owner if nobody waits, that an endpoint has raised."""
        end_if_forked(error)
        endpoint = message.name.decode(errors="replace")
        self._keep_error(error)
        answers = message.ref and not message.flags & wire.KEEP
        method = self._methods.get(message.name)
        answers_itself = method is not None and method.wants_port and not isinstance(error, KeyboardInterrupt)
        if not answers or answers_itself or not isinstance(error, Exception | KeyboardInterrupt):
            self._fail(error, message if answers else None, endpoint)
        else:
            answer_failure(self.host.transport, message, describe(error, **self._where(endpoint)))
            self._count(message, failed=True)
        self.host.transport.settle()

    def _keep_error(self, error: BaseException) -> None:
        """Keep an error for the debugger; stop there, if that's wanted."""
        if not isinstance(error, Exception) or self.host.debugger is None:
            return
        self.last_error, self.error_when = error, time.time()
        if not self.host.debugger.on_error:
            return
        try:
            self.host.debugger.post_mortem(error, StopReason.EXCEPTION, self.name)
        except TransportClosed:
            raise
        except BaseException:  # the caller must be answered nevertheless
            traceback.print_exc()

    def _fail(self, error: BaseException, asked: Message | None, endpoint: str) -> None:
        """Mark the actor as failed: it takes no more work, and what it owns is stopped; tell whoever asked
        for what failed, and the owner.
        """
        self.failure = describe(error, **self._where(endpoint), actor_id=self.actor_id)
        self._ended_with = error
        if asked is not None and asked.ref:
            answer_failure(
                self.host.transport,
                asked,
                self.failure if endpoint == "__init__" else replace(self.failure, dead=True),
            )
        self.host.report_failure(self.creator, self.actor_id, self.failure)
        for _stopping in self._stop_children():
            pass  # nobody waits

    def _refuse(self, message: Message) -> None:
        assert self.failure is not None
        if message.ref and not message.flags & wire.KEEP:
            answer_failure(self.host.transport, message, replace(self.failure, dead=True))


_UNCOUNTED = (b"checkpoint", b"num_calls")
_OWN_MESSAGES: dict[bytes, Callable[[ActorRunner, Message], None]] = {
    calls.SUPERVISE: ActorRunner._supervise,
    calls.SAVE: ActorRunner._save,
    calls.ABORT: ActorRunner._abort,
}


def has_async(cls: type) -> bool:
    """Return whether any method of `cls` is a coroutine function: such an actor gets an event loop."""
    for name in dir(cls):
        member = inspect.getattr_static(cls, name, None)
        function = getattr(member, "method", member)
        if name not in ("__supervise__", "__cleanup__") and inspect.iscoroutinefunction(function):
            return True
    return False


def _raise_in_thread(ident: int, error: type[BaseException] | None) -> None:
    """Raise `error` in a thread at its next bytecode; None withdraws an error that wasn't raised yet."""
    target = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), target)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)


def _run_apart(result: Any) -> Any:
    """Run an awaitable to its end in a thread of its own: this one may have a running loop."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _finish(result)).result()


async def _finish(result: Any) -> Any:
    coroutine: Coroutine[Any, Any, Any] = result
    return await coroutine
