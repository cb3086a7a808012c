"""Endpoints: methods of actors that other processes can call, and the ways to call them.

call       all actors of the mesh; a ValueMesh
call_one   the only actor of a mesh of one
choose     one of them, the one with the fewest calls of ours under way
stream     all, each answer as it comes
broadcast  all, no answer; what they raise goes to the actor's owner
scatter    all, each with arguments of its own; a ValueMesh
rref       all; the results stay where they are, and can be arguments of further calls
"""

from __future__ import annotations

import functools
import inspect
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from monarch_nb._client.actor_states import ActorState
from monarch_nb._protocol.journal import CallRecord, EndpointCalls
from monarch_nb._shape import Point, Shape, format_ranks
from monarch_nb._transport.call import call, call_each, call_one
from monarch_nb._transport.origin import origin_in
from monarch_nb._transport.pending import Arrivals, CallTime, CallTimes, GatherReply, OneReply, Pending
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.codec import CannotPickle, Encoded
from monarch_nb.actor.future import Future, sent
from monarch_nb.actor.handle import placement_of, transport_of
from monarch_nb.actor.outcome import one_value, value_mesh
from monarch_nb.actor.rref import RRef
from monarch_nb.exceptions import MeshUsageError, WrongArguments

if TYPE_CHECKING:
    from monarch_nb.actor.actor_mesh import ActorMesh
    from monarch_nb.actor.value_mesh import ValueMesh

P = ParamSpec("P")
R = TypeVar("R")

_NO_ARGUMENTS = (Encoded(b""), wire.EMPTY)


class EndpointOptions:
    """The options that `@endpoint(...)` was given.

    Attributes:
        explicit_response_port: the method's first argument is the port to answer on; its return value is
            dropped.
        concurrent: further messages may be handled while this (async) one waits.
        propagate: shape propagation of tensor programs; a function or "inspect".
        instrument: kept for Monarch programs; every call is in the metrics here.
    """

    __slots__ = ("concurrent", "explicit_response_port", "instrument", "propagate")

    def __init__(
        self,
        explicit_response_port: bool = False,
        concurrent: bool = False,
        propagate: Any = None,
        instrument: bool = False,
    ) -> None:
        self.explicit_response_port = explicit_response_port
        self.concurrent = concurrent
        self.propagate = propagate
        self.instrument = instrument


class EndpointProperty(Generic[P, R]):
    """A method that `@endpoint` has made an endpoint. Accessed on an instance it is the plain method, so that
    actors may call their own.
    """

    def __init__(self, method: Callable[..., Any], options: EndpointOptions) -> None:
        if not callable(method):
            raise TypeError(f"@endpoint goes on a method, not on {type(method).__name__}")
        self.method = method
        self.options = options
        self.__doc__ = method.__doc__
        self.__name__ = getattr(method, "__name__", "endpoint")

    @overload
    def __get__(self, instance: None, owner: type) -> EndpointProperty[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Endpoint[P, R]: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        return self.method.__get__(instance, owner)


@overload
def endpoint(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> EndpointProperty[P, R]: ...
@overload
def endpoint(method: Callable[Concatenate[Any, P], R], /) -> EndpointProperty[P, R]: ...
@overload
def endpoint(
    *, propagate: Any = None, explicit_response_port: bool = False, instrument: bool = False
) -> Callable[[Callable[..., Any]], EndpointProperty[..., Any]]: ...
def endpoint(
    method: Any = None,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = False,
) -> Any:
    """Mark a method of an actor as callable from elsewhere. Sync and async may be mixed in one class.

    Args:
        propagate: how shapes propagate, for tensor programs.
        explicit_response_port: pass the port to answer on as the first argument.
        instrument: accepted for Monarch programs.

    Example:
        >>> class Counter(Actor):               # doctest: +SKIP
        ...     @endpoint
        ...     def increment(self, by: int = 1) -> int:
        ...         self.value += by
        ...         return self.value
    """
    options = EndpointOptions(explicit_response_port, False, propagate, instrument)
    if method is not None:
        return EndpointProperty(method, options)
    return lambda function: EndpointProperty(function, options)


def concurrent_endpoint(method: Any = None, **options: Any) -> Any:
    """Mark an async method as concurrent: while it awaits, the actor handles further messages."""
    if method is None:
        return lambda function: concurrent_endpoint(function, **options)
    name = getattr(getattr(method, "method", method), "__qualname__", repr(method))
    if isinstance(method, EndpointProperty):
        raise MeshUsageError(
            f"@concurrent_endpoint does not wrap @endpoint: it makes an endpoint of {name} by itself. "
            "Leave @endpoint out"
        )
    if not inspect.iscoroutinefunction(method):
        raise MeshUsageError(
            f"@concurrent_endpoint needs an async method; {name} is not: write async def, or @endpoint"
        )
    return EndpointProperty(method, EndpointOptions(concurrent=True, **options))


class Load:
    """The number of calls of `choose` under way at each slot."""

    __slots__ = ("num", "turn")

    def __init__(self, size: int) -> None:
        self.num = [0] * size
        self.turn = secrets.randbelow(size)

    def least_busy(self) -> int:
        """Return the slot with the fewest calls, and count a call to it."""
        self.turn += 1
        n = len(self.num)
        slot = min(range(n), key=lambda i: (self.num[i], (i - self.turn) % n))
        self.num[slot] += 1
        return slot

    def next(self) -> int:
        """Return the next slot in turn."""
        self.turn += 1
        return self.turn % len(self.num)

    def done(self, slot: int) -> None:
        """Record that a call to this slot has been answered."""
        self.num[slot] -= 1


@dataclass(slots=True)
class Callees:
    """The actors that a handle calls, as all endpoints of the handle share them.

    Attributes:
        name, actor_id: name and id of the actors.
        state: whether they have failed; shared by all handles on one spawn.
        load: load of each actor for `choose`; none before the first.
    """

    name: str
    actor_id: int
    state: ActorState
    load: Load | None = None

    def load_of(self, size: int) -> Load:
        """Return their load; `size`: how many they are."""
        if self.load is None:
            self.load = Load(size)
        return self.load


class Endpoint(Generic[P, R]):
    """One endpoint of the actors of a mesh, with the ways to call it. Slices of the handle make others."""

    __slots__ = (
        "_arity",
        "_callees",
        "_finish_one",
        "_mesh",
        "_name",
        "_placement",
        "_receivers",
        "_signature",
        "_state",
        "_target",
        "_transport",
        "what",
    )

    def __init__(
        self, mesh: ActorMesh[Any], callees: Callees, name: str, signature: inspect.Signature | None
    ) -> None:
        self._mesh = mesh
        self._callees = callees
        self._state = callees.state
        self._target = callees.actor_id
        self._name = name.encode()
        self._signature = signature
        self._arity = _arity_of(signature)
        self.what = f"{callees.name}.{name}"
        """Its name for display."""
        self._finish_one = functools.partial(one_value, what=self.what)
        self._transport: Transport = transport_of(mesh)
        self._placement = placement_of(mesh)
        self._receivers = self._placement.receivers

    @property
    def shape(self) -> Shape:
        """The layout of the called actors: an answer for each place."""
        return self._placement.shape

    # --- adverbs

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call all actors of the mesh.

        Returns:
            A future of the values, by point. It fails as soon as one rank has failed (the others get a tenth
            of a second), with equal failures folded by rank set and the good results on the error.
        """
        transport = self._ready_transport()
        gather = GatherReply(transport, self._placement.procs)
        body, flags = self._encode(args, kwargs)
        self._time(gather)
        return sent(self._future_of_all(gather), lambda: self._call(gather, body, flags))

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the actor of a mesh of one.

        Raises:
            ValueError: if the mesh has several actors; slice it first.
        """
        if len(self._receivers) != 1:
            raise MeshUsageError(
                f"{self.what}.call_one needs a mesh of one actor; this one has {len(self._receivers)} "
                f"({self.shape.extent}). Slice it first, as in .slice({self._example()}), or use .call"
            )
        return self._to_one(self._placement.procs, 0, args, kwargs)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call one actor of the mesh: the one with the fewest of our calls under way."""
        load = self._callees.load_of(len(self._receivers))
        slot = load.least_busy()
        future: Future[R] = self._to_one((self._receivers[slot][0],), slot, args, kwargs)
        future.add_done_callback(lambda _: load.done(slot))
        return future

    def _to_one(self, procs: tuple[int, ...], slot: int, args: Any, kwargs: Any) -> Future[R]:
        transport = self._ready_transport()
        body, flags = self._encode(args, kwargs)
        reply = OneReply(transport, procs)
        reply.sole_reader = self.what
        if transport.calls is not None:
            self._time(reply)
        future: Future[R] = Future(reply, self._finish_one, self.what, True)
        try:  # as `sent` does, without a closure: that's 6 % of the time to send a call
            call_one(
                reply, procs[0], self._name, body, flags, slot,
                self._target, origin_in(transport), self._placement.context,
            )  # fmt: skip
        except KeyboardInterrupt:
            future.interrupt()
            raise
        return future

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R]:
        """Call all actors; iterate over futures in the order in which the answers come."""
        transport = self._ready_transport()
        arrivals = Arrivals(transport, self._placement.procs)
        for reply in arrivals.replies:
            self._time(reply)
        body, flags = self._encode(args, kwargs)
        self._call(arrivals, body, flags)
        return Stream(arrivals, self.shape, self.what)

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all actors and don't wait. If one raises, its owner is asked to handle it
        (`__supervise__`).
        """
        self._ready_transport()
        body, flags = self._encode(args, kwargs)
        self._post(body, flags, 0)

    def scatter(self, arguments: Sequence[Any], **kwargs: Any) -> Future[ValueMesh[R]]:
        """Call all actors, each with arguments of its own.

        Args:
            arguments: one entry for each actor, in rank order; a tuple is spread as positional arguments.
            kwargs: the same for all.

        Raises:
            ValueError: if there aren't as many entries as actors.

        Example:
            >>> trainer.step.scatter(list(batch.chunk(8))).get()  # doctest: +SKIP
        """
        entries = list(arguments)
        if len(entries) != len(self._receivers):
            raise MeshUsageError(
                f"{self.what}.scatter got {len(entries)} entries for {len(self._receivers)} actors "
                f"({self.shape.extent})"
            )
        transport = self._ready_transport()
        bodies = [self._encode(e if isinstance(e, tuple) else (e,), kwargs) for e in entries]
        gather = GatherReply(transport, self._placement.procs)
        self._time(gather)
        return sent(
            self._future_of_all(gather),
            lambda: call_each(
                gather, self._receivers, self._name, bodies,
                target=self._target, origin=origin_in(transport), context=self._placement.context,
            ),
        )  # fmt: skip

    def rref(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call all actors and leave each result on its rank; the returned handle may be an argument of
        further calls.

        Example:
            >>> batch = loader.next_batch.rref()          # doctest: +SKIP
            >>> trainer.step.call(batch).get()            # doctest: +SKIP
        """
        self._ready_transport()
        body, flags = self._encode(args, kwargs)
        handle = RRef.new(self._placement.procs, self.shape, self._transport.mesh)
        self._post(body, flags | wire.KEEP, handle.key)
        return handle

    def send(self, args: Any, kwargs: Any, port: Any = None, selection: str = "all") -> None:
        """Send a message; the answers, if wanted, go to `port`."""
        self._ready_transport()
        body, flags = self._encode(args, kwargs)
        receivers = self._receivers
        if selection == "choose":
            receivers = [receivers[self._callees.load_of(len(receivers)).next()]]
        self._post(body, flags, 0 if port is None else port.ref, receivers)

    def describe(self, times: CallTimes) -> EndpointCalls:
        """Return calls to this endpoint as the journal records them."""
        ranks = self.shape.ranks

        def by_rank(each: CallTime) -> CallRecord:
            seconds = {ranks[slot]: round(seconds, 6) for slot, seconds in sorted(each.seconds.items())}
            return CallRecord(round(each.when, 6), each.num_failed, seconds)

        total = by_rank(times)
        return EndpointCalls(
            total.when, total.num_failed, total.seconds, self.what, format_ranks(ranks), times.num,
            each=[by_rank(each) for each in times.each],
        )  # fmt: skip

    # --- sending

    def _future_of_all(self, gather: GatherReply) -> Future[ValueMesh[Any]]:
        shape, what = self._placement.shape, self.what
        return Future(gather, lambda pending: value_mesh(pending, shape, what), what)

    def _ready_transport(self) -> Transport:
        if self._state.failure is not None:
            self._state.check(self._placement.procs, self.what)
        calls = self._transport.calls
        if calls is not None:
            calls.setdefault(self, CallTimes()).num += 1
        return self._transport

    def _time(self, pending: Pending) -> None:
        """Record the times of the answers, in a notebook."""
        calls = self._transport.calls
        if calls is not None:
            times = calls.get(self)
            pending.times, pending.started = times and times.begin_call(), time.perf_counter()

    def _call(self, pending: Pending, body: Encoded, flags: int) -> None:
        """Send to all; `pending` receives the answers."""
        call(
            pending, self._receivers, self._name, body, target=self._target, flags=flags,
            origin=origin_in(pending.transport), context=self._placement.context,
        )  # fmt: skip

    def _post(self, body: Encoded, flags: int, ref: int, receivers: Any = None) -> None:
        """Send to all, or to some; answers, if any, go to another receiver."""
        transport = self._transport
        transport.post_all(
            self._receivers if receivers is None else receivers, wire.CALL, body, flags=flags, ref=ref,
            target=self._target, origin=origin_in(transport), name=self._name,
            context=self._placement.context,
        )  # fmt: skip

    def _example(self) -> str:
        return ", ".join(f"{label}=0" for label in self.shape.extent.labels)

    def _encode(self, args: Any, kwargs: Any) -> tuple[Encoded, int]:
        if kwargs or len(args) not in self._arity:
            self._check(args, kwargs)
        if not args and not kwargs:
            return _NO_ARGUMENTS
        try:
            return codec.encode((args, kwargs), "arguments"), 0
        except CannotPickle as error:
            raise self._explain(error, args, kwargs) from error.__cause__

    def _check(self, args: Any, kwargs: Any) -> None:
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise WrongArguments(
                f"{self.what}{self._signature} was called with other arguments: {error}"
            ) from None

    def _explain(self, error: CannotPickle, args: Any, kwargs: Any) -> CannotPickle:
        """Return an error that names the argument by its parameter."""
        named = dict(kwargs)
        if self._signature is not None:
            named = dict(self._signature.bind(*args, **kwargs).arguments)
        for name, value in named.items():
            path = codec.find_unpicklable(value, f"argument `{name}`")
            if path:
                reason = str(error).rpartition(": ")[2]
                return CannotPickle(f"{self.what}: {path}: {reason}")
        return error

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        raise WrongArguments(
            f"{self.what} is called through an adverb: .call(...), .call_one(...), .choose(...), "
            ".stream(...) or .broadcast(...)"
        )

    def __repr__(self) -> str:
        return f"<Endpoint {self.what} on {self.shape.extent}>"


class Stream(Generic[R]):
    """The answers of a mesh as they arrive: iterates over futures; `items()` over `(point, value)`."""

    def __init__(self, arrivals: Arrivals, shape: Shape, what: str) -> None:
        self._arrivals = arrivals
        self._shape = shape
        self._what = what

    def __iter__(self) -> Iterator[Future[R]]:
        what = self._what
        for reply in self._arrivals.replies:
            yield Future(reply, lambda pending: one_value(pending, what), what)

    def __len__(self) -> int:
        return len(self._arrivals.replies)

    def items(self) -> Iterator[tuple[Point, R]]:
        """Wait for each answer in turn; yield where it came from, and the value."""
        what = self._what
        for reply in self._arrivals.replies:
            value: R = Future(reply, lambda pending: one_value(pending, what), what).get()
            yield self._shape.point(reply.slot), value


def _arity_of(signature: inspect.Signature | None) -> range:
    """Return the number of arguments, all positional, that a signature requires and accepts: such calls
    needn't be bound to it, which takes some microseconds.

    >>> _arity_of(inspect.signature(lambda a, b=0: None))
    range(1, 3)
    """
    if signature is None:
        return range(0)
    kinds = inspect.Parameter
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty for p in parameters):
        return range(0)
    return range(sum(p.default is kinds.empty for p in positional), len(positional) + 1)


def signature_of(cls: type, name: str) -> inspect.Signature | None:
    """Return the signature that callers of an endpoint see, or None if it can't be known."""
    found = inspect.getattr_static(cls, name)
    function = found.method if isinstance(found, EndpointProperty) else found
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    skip = 2 if isinstance(found, EndpointProperty) and found.options.explicit_response_port else 1
    return signature.replace(parameters=list(signature.parameters.values())[skip:])
