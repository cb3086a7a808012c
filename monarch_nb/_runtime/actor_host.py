"""Receives calls in a process that has actors: a rank, or a client that has spawned some in itself."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from monarch_nb._protocol import calls
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.events import CheckpointEpoch, MeshNamed, Reshaped
from monarch_nb._protocol.failure import ActorFailed, Failure
from monarch_nb._protocol.questions import (
    CheckpointVersions,
    InterruptCall,
    LivingActors,
    Ping,
    StopActor,
    ThreadStacks,
)
from monarch_nb._protocol.registry import LATER, Handler, Handlers, Later, Sender, handles
from monarch_nb._runtime.actors import ActorRunner, CallDebugger
from monarch_nb._runtime.awaiting import frames_of
from monarch_nb._runtime.checkpoints import Checkpoints
from monarch_nb._runtime.inbox import Inbox
from monarch_nb._shape import Extent, Shape
from monarch_nb._transport import process_context
from monarch_nb._transport.call import answer_failure
from monarch_nb._transport.data_plane import remote_arguments
from monarch_nb._transport.failure import describe, encode_failure
from monarch_nb._transport.pending import Body
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address, codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.activity_page import ActivityPage
from monarch_nb._wire.message import Message

AGAIN_S = (0.05, 0.5, 2.0)
"""Delays after which a call that an interrupt hasn't found is looked up again."""
END_S = 10.0
"""How long a request to stop an actor waits for its current message and for its clean-up."""
ORPHAN_S = 10.0
"""How long a call may precede the message that spawns its actor."""


class ActorHost:
    """The actors of one process, and the receiver of calls to them. `on_call` and what it calls run in the
    reading thread and never block.
    """

    def __init__(
        self, transport: Transport, on_work: Callable[[Message], Any] | None = None,
        page: ActivityPage | None = None,
        debugger: CallDebugger | None = None,
    ) -> None:  # fmt: skip
        self.transport = transport
        self.page = page if page is not None else ActivityPage()
        self.debugger = debugger
        self.actors: dict[int, ActorRunner] = {}
        self.before_call: Callable[[], None] | None = None
        """Called on an actor's thread before it handles a call; an exception that it raises is the answer."""
        self.checkpoints: dict[int, Checkpoints] = {}
        """Checkpoints by actor, which outlive the actor."""
        self.checkpoint_epochs: dict[int, int] = {}
        """Epoch by actor, also of one that is still being constructed: members that save together must agree
        on it; the controller counts.
        """
        self._on_work = on_work
        self._early: dict[int, Message] = {}
        """Calls that came before the message that spawns their actor, each under a number of its own, oldest
        first. The reading thread and the background reader take them out: whoever gets one answers it.
        """
        self._early_numbers = itertools.count()
        self._gone: dict[int, str] = {}
        """Actors that were stopped here, with the reason."""
        self._leaving: dict[int, ActorRunner] = {}
        """Those of them that are still cleaning up."""
        transport.on_call = self.on_call
        self.handlers = Handlers(self)
        transport.event_handlers.append(self.handlers)
        self.services: dict[bytes, Callable[[Message], Any]] = {
            calls.DATA_PLANE: self._rdma,
            calls.SNAPSHOT: self._snapshot,
            calls.SUPERVISE: self._supervise,
        }
        """Handlers of calls to this process itself that carry the user's values; they return the waiter to
        wake.
        """

    def on_call(self, message: Message) -> Any:
        """Handle a CALL message; return the waiter to wake."""
        if message.name == calls.SPAWN:
            return self._spawn(message)
        if message.name == calls.RESPAWN:
            return self._respawn(message)
        if message.target == 0:
            return self._on_system_call(message)
        runner = self.actors.get(message.target)
        if runner is not None:
            return runner.inbox.put_message(message)
        if message.target in self._gone:
            self._no_such_actor(message)
            return None
        # From a third party: its call may overtake the message that spawns the actor.
        number = next(self._early_numbers)
        self._early[number] = message
        self.transport.reader.call_at(time.monotonic() + ORPHAN_S, lambda: self._give_up(number))
        return None

    def on_guest_call(self, message: Message) -> Any:
        """Handle a CALL from a mesh that this process is a guest of: an object there that an actor here owns
        has failed. The actor waits in the reader of this process' own mesh, so it's woken here.
        """
        runner = self.actors.get(message.target)
        if message.name == calls.SUPERVISE and runner is not None:
            waiter = runner.inbox.put_message(message)
            if waiter is not None:
                waiter.rouse(self.transport)
        return None

    @handles(MeshNamed)
    def on_mesh_named(self, event: MeshNamed, sender: Sender) -> None:
        """Record the mesh's new name."""
        if self.transport.mesh is not None:
            self.transport.mesh = self.transport.mesh._replace(name=event.name)

    @handles(CheckpointEpoch)
    def on_checkpoint_epoch(self, event: CheckpointEpoch, sender: Sender) -> None:
        """Record the epoch that the members of an actor must agree on to save together."""
        self.checkpoint_epochs[event.actor_id] = event.epoch

    @handles(Reshaped)
    def on_reshaped(self, event: Reshaped, sender: Sender) -> None:
        """Tell actors that are on the whole mesh its new sizes, and their new neighbours."""
        shape = Shape.full(Extent(event.labels, event.sizes))
        for actor_id, procs in event.actors.items():
            runner = self.actors.get(actor_id)
            if runner is not None and runner.mesh is not None:
                runner.mesh._reshape(procs, shape)
            if actor_id in self.checkpoints and self.transport.me in procs:
                self.checkpoints[actor_id].move(procs.index(self.transport.me), len(procs))

    def _on_system_call(self, message: Message) -> Any:
        name = message.name.decode("utf-8", "replace")
        service, handler = self.services.get(message.name), self.handlers.find(name)
        try:
            if service is not None:
                return service(message)
            if handler is not None:
                self._handle(handler, message)
                return None
        except Exception as error:  # the reading thread must survive any request
            traceback.print_exc()
            failure = describe(error, **process_context.whereabouts(), endpoint=name)
            answer_failure(self.transport, message, failure, marks_output=False)
            return None
        if self._on_work is not None:
            return self._on_work(message)
        self._no_such_actor(message)
        return None

    # --- spawning and stopping

    def _spawn(self, message: Message, before: ActorRunner | None = None) -> Any:
        """Create an actor, and deliver the calls that have overtaken this message; return the waiter to wake:
        the actor's thread may wait for messages already.
        """
        if message.target in self.actors:
            return None
        runner = self.actors[message.target] = ActorRunner(self, message, before)
        awake = None
        for number, early in list(self._early.items()):
            if early.target == message.target and self._early.pop(number, None) is not None:
                awake = runner.inbox.put_message(early)
        return awake

    def _respawn(self, message: Message) -> Any:
        """Create a failed actor again, or one whose process is new; return the waiter to wake."""
        before = self.actors.pop(message.target, None)
        if before is not None:
            before.stop()
        self._gone.pop(message.target, None)
        return self._spawn(message, before)

    def _give_up(self, number: int) -> None:
        """Refuse a call whose actor hasn't been spawned in all that time. Called by the background reader."""
        message = self._early.pop(number, None)
        if message is not None:
            self._no_such_actor(message)

    def _no_such_actor(self, message: Message) -> None:
        if not message.ref:
            return
        where = process_context.whereabouts()
        rank = where.get("rank", "?")
        failure = Failure(
            "SupervisionError",
            (f"no such actor on rank {rank}: {self._gone.get(message.target, 'it was never spawned there')}"),
            when=time.time(),
            dead=True,
            endpoint=message.name.decode(errors="replace"),
            rank=rank if isinstance(rank, int) else None,
            host=where.get("host", ""),
            pid=where.get("pid", 0),
        )
        answer_failure(self.transport, message, failure, marks_output=False)

    def _reply(self, message: Message, value: object) -> None:
        if message.ref:
            body = codec.encode(value)
            self.transport.post(message.src, wire.REPLY, body, slot=message.slot, ref=message.ref)

    def _handle(self, handler: Handler, message: Message) -> None:
        """Carry out a request, and answer it."""
        sender = Sender(message.src, message.ref, message.slot)
        answer = handler(message.payload, sender)
        if not isinstance(answer, Later):
            self._answer(sender, answer)

    def _answer(self, sender: Sender, answer: object) -> None:
        if sender.ref:
            body, flags = (
                (codec.Encoded(b""), wire.EMPTY) if answer is None else (codec.Encoded(encode(answer)), 0)
            )
            self.transport.post(sender.proc, wire.REPLY, body, flags=flags, slot=sender.slot, ref=sender.ref)

    @handles(StopActor)
    def do_stop_actor(self, request: StopActor, sender: Sender) -> Later | None:
        """Let an actor end."""
        runner = self.end_actor(request.actor_id, RuntimeError(request.reason) if request.reason else None)
        if runner is None or not request.waits:
            return None
        runner.when_ended(lambda: self._answer(sender, None))
        self.transport.reader.call_at(time.monotonic() + END_S, lambda: self._answer(sender, None))
        return LATER

    def end_actor(self, actor_id: int, reason: BaseException | None) -> ActorRunner | None:
        """End an actor after its current message; return it, if it hasn't ended yet."""
        runner = self.actors.get(actor_id)
        if runner is None:
            self._gone.setdefault(actor_id, "it was stopped")
            return self._leaving.get(actor_id)
        self._gone[actor_id] = "it was stopped" + (f": {reason}" if reason is not None else "")
        # At each moment it's in one of both: `stop` may come from another thread, or by a signal in between.
        self._leaving[actor_id] = runner
        self.actors.pop(actor_id, None)
        runner.stop(reason)
        return runner

    def has_ended(self, runner: ActorRunner) -> None:
        """Forget an actor that was stopped and whose thread is about to end. Called in that thread."""
        if self._leaving.get(runner.actor_id) is runner:
            del self._leaving[runner.actor_id]

    def _rdma(self, message: Message) -> None:
        """Load the data plane, which nothing in this process has used yet, and hand it the message: from now
        on the data plane takes such messages itself.
        """
        remote_arguments().join()
        self.transport.services[message.name](message)

    # --- requests that are answered at once

    @handles(Ping)
    def do_ping(self, request: Ping, sender: Sender) -> None:
        """Answer, to show that this thread is alive."""

    @handles(ThreadStacks)
    def do_thread_stacks(self, request: ThreadStacks, sender: Sender) -> dict[str, str]:
        """Return the stack of each thread."""
        return {**thread_stacks(), **self._awaiting_stacks()}

    def _awaiting_stacks(self) -> dict[str, str]:
        """Return where the calls of async actors await: their threads' stacks show the event loop only."""
        return {
            f"actor-{runner.name} awaits ({i})": "".join(
                "".join(traceback.format_stack(f, 1)) for f in frames_of(task)
            )
            for runner in list(self.actors.values())
            for i, task in enumerate(runner.tasks().values())
        }

    @handles(CheckpointVersions)
    def do_checkpoint_versions(self, request: CheckpointVersions, sender: Sender) -> dict[int, list[int]]:
        """Return the versions that are in memory here, by actor."""
        return {i: c.versions() for i, c in list(self.checkpoints.items())}

    def _snapshot(self, message: Message) -> None:
        """Return a copy of an actor's state from memory, or None."""
        actor_id, version = Body(self.transport, message).value()
        found = self.checkpoints.get(actor_id)
        self._reply(message, None if found is None else found.find(version))

    @handles(LivingActors)
    def do_living_actors(self, request: LivingActors, sender: Sender) -> list[int]:
        """Return the ids of the actors here that haven't failed."""
        return [i for i, r in list(self.actors.items()) if r.failure is None]

    @handles(InterruptCall)
    def do_interrupt_call(self, request: InterruptCall, sender: Sender) -> None:
        """Interrupt the sender's call, if it still runs; one that waits is removed and answered."""
        self._interrupt(sender.proc, request.ref, AGAIN_S)

    def _interrupt(self, src: int, ref: int, again_s: Sequence[float]) -> None:
        """Interrupt a call; if it neither runs nor waits, look again after some seconds: its thread may have
        just taken it from the inbox.
        """
        if self._interrupt_running(src, ref) or self._withdraw(src, ref):
            return
        if again_s:
            again = partial(self._interrupt, src, ref, again_s[1:])
            self.transport.reader.call_at(time.monotonic() + again_s[0], again)

    def _withdraw(self, src: int, ref: int) -> bool:
        """Remove a waiting call, and answer it; False if it isn't there."""
        for inbox in self._inboxes():
            waiting = inbox.remove(src, ref)
            if waiting is not None:
                failure = describe(
                    KeyboardInterrupt("interrupted before it had begun"), **process_context.whereabouts()
                )
                answer_failure(self.transport, waiting, failure, marks_output=False)
                return True
        return False

    def _interrupt_running(self, src: int, ref: int) -> bool:
        """Interrupt the call that `src` waits for under `ref`; False if it doesn't run here."""
        return any(runner.interrupt(src, ref) for runner in list(self.actors.values()))

    def _inboxes(self) -> list[Inbox[Message]]:
        """Return the inboxes with waiting calls."""
        return [runner.inbox for runner in list(self.actors.values())]

    # --- failure

    def report_failure(self, owner: tuple[int, int], actor_id: int, failure: Failure) -> None:
        """Tell the owner of an actor that it has failed: an actor is asked, a client is told."""
        proc, owner_actor = owner
        body = encode_failure(
            failure, lambda each: ActorFailed(actor_id, replace(each, proc=self.transport.me))
        )
        if address.is_client(proc) and not owner_actor:
            frame = wire.pack(
                wire.EVENT, src=self.transport.me, dst=proc, name=ActorFailed.wire_name.encode(),
                payload=body.payload,
            )  # fmt: skip
            self.transport.send(proc, frame)
        else:
            self.transport.post(proc, wire.CALL, body, target=owner_actor, name=calls.SUPERVISE)

    def _supervise(self, message: Message) -> None:
        """Print the failure of something that a cell of this rank owns, to stderr."""
        failure = Body(self.transport, message).read(ActorFailed).failure
        print(failure.traceback or failure.message, file=sys.stderr, flush=True)

    def stop(self) -> None:
        """End all actors, with their clean-up."""
        runners = [*self.actors.values(), *list(self._leaving.values())]
        for actor_id in list(self.actors):
            self.end_actor(actor_id, None)
        for runner in runners:
            runner.inbox.close(self.transport)  # again: the signal may have come before `end_actor` got there
            runner.thread.join(2.0)


def thread_stacks() -> dict[str, str]:
    """Return the Python stack of each thread of this process, by thread name; of several of one name, the
    second is "NAME (2)".
    """
    names = {t.ident: t.name for t in threading.enumerate()}
    found: dict[str, str] = {}
    for ident, frame in sys._current_frames().items():
        name = unique = names.get(ident, str(ident))
        for i in itertools.count(2):
            if unique not in found:
                break
            unique = f"{name} ({i})"
        found[unique] = "".join(traceback.format_stack(frame))
    return found
