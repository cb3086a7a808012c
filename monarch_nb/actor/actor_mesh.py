"""Actors, which run in ranks, and the actor mesh, which is the caller's handle on them."""

from __future__ import annotations

import inspect
import secrets
import weakref
from collections.abc import Generator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from monarch_nb import _reload
from monarch_nb._client import session as sessions
from monarch_nb._client.actor_states import ActorState
from monarch_nb._protocol import calls
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.events import Reshaped
from monarch_nb._protocol.healing import ActorSpawned, ActorStopped
from monarch_nb._protocol.questions import StopActor
from monarch_nb._runtime.actor_spec import ActorSpec
from monarch_nb._runtime.supervision import MeshFailure
from monarch_nb._shape import Extent, Shape
from monarch_nb._tracebacks import BadName
from monarch_nb._transport import process_context
from monarch_nb._transport.call import call
from monarch_nb._transport.context import call_context
from monarch_nb._transport.origin import origin_in
from monarch_nb._transport.pending import GatherReply, OneReply
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address, codec
from monarch_nb._wire.codec import Encoded
from monarch_nb._wire.mesh_address import MeshAddress
from monarch_nb.actor.endpoint import Callees, Endpoint, EndpointProperty, signature_of
from monarch_nb.actor.envoy import ask_envoy, is_relayed, relayed_endpoint
from monarch_nb.actor.future import Future
from monarch_nb.actor.handle import MeshHandle, disown, mesh_of, own_by_caller, placement_of, transport_of
from monarch_nb.actor.outcome import value_mesh
from monarch_nb.actor.ownership import creator_instance
from monarch_nb.actor.placement import Placement
from monarch_nb.exceptions import MeshUsageError, WrongArguments

if TYPE_CHECKING:
    import logging

    from monarch_nb.actor.proc_mesh import ProcMesh

T = TypeVar("T")

MAX_SPEC_BYTES = 64 << 20
"""Actors spawned with larger arguments can't be created again by `heal`, since such arguments aren't kept."""


class Actor:
    """The base class of all actors: state in a rank, changed by messages, one at a time.

    `__supervise__(failure) -> bool` is asked when something the actor owns fails; `__cleanup__(error)` runs
    before it goes.

    Example:
        >>> class Counter(Actor):               # doctest: +SKIP
        ...     def __init__(self, start: int = 0):
        ...         self.value = start
        ...     @endpoint
        ...     def increment(self) -> int:
        ...         self.value += 1
        ...         return self.value
    """

    @cached_property
    def logger(self) -> logging.Logger:
        """The logger of this actor's class. What an actor logs, by whatever logger, begins with its name."""
        import logging

        found = logging.getLogger(type(self).__name__)
        found.setLevel(logging.DEBUG)
        return found

    @property
    def initialized(self) -> Future[None]:
        """On a spawned mesh: a future that is done once all its actors are constructed."""
        raise AttributeError("`initialized` belongs to the mesh that spawn() returns")

    def slice(self, **selectors: int | slice) -> Self:
        """On a spawned mesh: a part of it."""
        raise AttributeError("`slice` belongs to the mesh that spawn() returns")


_WITH_ENDPOINTS: weakref.WeakValueDictionary[int, ActorMesh[Any]] = weakref.WeakValueDictionary()
"""Handles whose endpoints have been accessed."""


def _renew_all_endpoints() -> Sequence[str]:
    """Have all handles of this process look up their endpoints again, after classes and signatures were
    changed in place.
    """
    for mesh in list(_WITH_ENDPOINTS.values()):
        mesh._renew_endpoints()
    return ()


_reload.AFTER.append(_renew_all_endpoints)


class ActorMesh(MeshHandle, Generic[T]):
    """The actors of one spawn (or a part of them), with the endpoints of their class as attributes.

    A handle: it may be an argument or a return value, and stays good in any process of its mesh, and in those
    of other meshes of this machine.
    """

    def __init__(
        self,
        cls: type,
        name: str,
        actor_id: int,
        placement: Placement,
        transport: Transport | None = None,
        mesh: MeshAddress | None = None,
    ) -> None:
        super().__init__(placement, transport, mesh)
        self._class = cls
        self._name = name
        self._actor_id = actor_id
        self._spawned: GatherReply | None = None
        self._callees = Callees(name, actor_id, ActorState())
        self._proc_mesh: ProcMesh | None = None
        self._parent: ActorMesh[T] | None = None

    @property
    def _state(self) -> ActorState:
        return self._callees.state

    # --- algebra

    def _with_shape(self, shape: Shape) -> Self:
        part = type(self)(
            self._class,
            self._name,
            self._actor_id,
            self._placement.with_shape(shape),
            self._known_transport,
            self._mesh,
        )
        part._spawned = self._spawned
        part._proc_mesh = self._proc_mesh
        part._parent = self
        part._callees.state = self._state
        return part

    # --- endpoints

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = inspect.getattr_static(self._class, name, None)
        if inspect.isfunction(found):
            return NotAnEndpoint(self, name)
        if not isinstance(found, EndpointProperty):
            raise BadName(self._no_endpoint(name))
        made = self._as_endpoint(name)
        self.__dict__[name] = made
        _WITH_ENDPOINTS[id(self)] = self
        return made

    def _no_endpoint(self, name: str) -> str:
        endpoints = sorted(
            n
            for n in dir(self._class)
            if isinstance(inspect.getattr_static(self._class, n), EndpointProperty)
        )
        return f"{self._class.__name__} has no endpoint {name!r}; it has: {', '.join(endpoints) or 'none'}"

    def _reload(self, cls: type) -> None:
        """Record that the actors have a new class: endpoints are looked up again."""
        self._renew_endpoints()
        self._class = cls

    def _renew_endpoints(self) -> None:
        """Look endpoints up again at their next access."""
        for name in [k for k, v in list(vars(self).items()) if isinstance(v, Endpoint)]:
            vars(self).pop(name, None)

    def _reshape(self, procs: tuple[int, ...], shape: Shape) -> None:
        """Adopt the present sizes of the processes' mesh."""
        self._placement = Placement(tuple(procs), shape)
        self._callees.load = None
        self._renew_endpoints()

    def _on_reshaped(self, record: Reshaped) -> None:
        """Handle new sizes of a group of ranks: take them on, if these actors are on all of the group."""
        procs = record.actors.get(self._actor_id)
        if procs is not None:
            self._reshape(procs, Shape.full(Extent(record.labels, record.sizes)))

    def _as_endpoint(self, name: str) -> Any:
        if is_relayed(self):
            return relayed_endpoint(self, name)
        return Endpoint(self, self._callees, name, signature_of(self._class, name))

    # --- life

    def _spawn(self, args: tuple[Any, ...], kwargs: dict[str, Any], proc_mesh: ProcMesh) -> None:
        """Send the class and its arguments to all procs; doesn't wait."""
        _check_names(self)
        transport = self._transport
        context = call_context.get()
        creator = (transport.me, context.actor.actor_id if context.actor is not None else 0)
        spec: ActorSpec = {
            "class": self._class,
            "args": args,
            "kwargs": kwargs,
            "name": self._name,
            "creator": creator,
            "creator_instance": creator_instance(),
            "mesh": self,
            "proc_mesh": proc_mesh,
        }
        body = self._encode_spec(spec)
        self._proc_mesh = proc_mesh
        session = sessions.of_transport(transport)
        session.meshes[self._actor_id] = self
        session.actor_states[self._actor_id] = self._state  # before a rank can report its failure
        where = self._placement
        gather = self._spawned = GatherReply(transport, where.procs)
        gather.asker = _nobody  # until `initialized` is accessed
        call(
            gather, where.receivers, calls.SPAWN, body,
            target=self._actor_id, origin=origin_in(transport), context=where.context,
        )  # fmt: skip
        session.reshaped.subscribe(self._on_reshaped)
        if not address.is_client(where.procs[0]):
            self._register_spawn(body, creator)

    def _register_spawn(self, body: Encoded, creator: tuple[int, int]) -> None:
        """Have the controller keep the specification from which these actors can be created again."""
        size_bytes = len(body.payload) + sum(b.nbytes for b in body.buffers)
        sessions.of_transport(self._transport).tell(
            ActorSpawned(
                actor_id=self._actor_id,
                name=self._name,
                procs=self._placement.procs,
                context=self._placement.context,
                creator=creator,
                checkpointed=getattr(self._class, "checkpoint_state", ""),
                size_bytes=size_bytes,
                spec=codec.to_bytes(body) if size_bytes <= MAX_SPEC_BYTES else None,
            )
        )

    def _encode_spec(self, spec: ActorSpec) -> Encoded:
        try:
            return codec.encode(spec, f"spawn of {self._class.__name__}")
        except codec.CannotPickle as error:
            signature = inspect.signature(self._class)
            named = {**dict(signature.bind(*spec["args"], **spec["kwargs"]).arguments)}
            for name, value in named.items():
                path = codec.find_unpicklable(value, f"argument `{name}`")
                if path:
                    reason = str(error).rpartition(": ")[2]
                    raise codec.CannotPickle(f"spawn of {self._class.__name__}: {path}: {reason}") from error
            raise

    @property
    def initialized(self) -> Future[None]:
        """A future that is done once all actors are constructed; it fails if one can't be."""
        if self._spawned is None:
            return Future(done_reply(process_context.transport()), lambda _: None)
        # The future keeps this handle, and so the note of what was told, though nothing else may.
        return Future(self._spawned, self._finish_spawn, f"spawn of {self._name}")

    def _finish_spawn(self, pending: Any) -> None:
        """Raise what the constructors have raised."""
        __tracebackhide__ = True
        line = Shape.full(Extent(["ranks"], [len(pending.procs)]))
        value_mesh(pending, line, f"spawn of {self._name}")

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self.initialized.__await__()
        return self

    def stop(self, reason: str = "") -> Future[None]:
        """End these actors, each after the message it is handling. What an actor has spawned itself ends
        before it does.

        The future is done when all have cleaned up; one that is stuck isn't waited for longer than ten
        seconds.
        """
        disown(self)
        if is_relayed(self):
            return ask_envoy(self, ("stop",), (reason,))
        transport = self._transport
        actor = call_context.get().actor
        waits = actor is None or actor.actor_id != self._actor_id  # an actor can't wait for its own end
        procs = self._placement.procs
        body = Encoded(encode(StopActor(self._actor_id, reason, waits)))
        gather = GatherReply(transport, procs)
        call(gather, self._placement.receivers, StopActor.wire_name.encode(), body)
        if not address.is_client(procs[0]):
            sessions.of_transport(transport).tell(ActorStopped(self._actor_id, list(procs)))
        failure = MeshFailure(
            mesh=self._name, message=f"it was stopped{': ' + reason if reason else ''}", stopped=True
        )
        self._state.end_on(procs, failure)
        return Future(gather, lambda _: None, f"stop of {self._name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (
            self._class,
            self._name,
            self._actor_id,
            self._placement.all_procs,
            self._placement.shape,
            mesh_of(self),
        )

    def __repr__(self) -> str:
        return f"<ActorMesh {self._name} of {self._class.__name__}: {self.extent}>"


def _unpickle(
    cls: type, name: str, actor_id: int, procs: tuple[int, ...], shape: Shape, mesh: MeshAddress | None
) -> ActorMesh[Any]:
    return ActorMesh(cls, name, actor_id, Placement(procs, shape), None, mesh)


def _nobody() -> None:
    return None


def done_reply(transport: Transport) -> Any:
    """Return an answer that has arrived already, without a value."""
    reply = OneReply(transport, ())
    reply.ready = True
    return reply


def spawn_actors(
    proc_mesh: ProcMesh, name: str, cls: type[T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ActorMesh[T]:
    """Spawn one actor of class `cls` on each proc of a mesh."""
    check_class(cls, args, kwargs)
    placement = Placement(placement_of(proc_mesh).procs, Shape.full(proc_mesh.extent))
    mesh: ActorMesh[T] = ActorMesh(cls, name, secrets.randbits(63) | 1, placement, transport_of(proc_mesh))
    mesh._spawn(args, kwargs, proc_mesh)
    own_by_caller(mesh)
    return mesh


def start_actors(
    mesh: ActorMesh[Any], proc_mesh: ProcMesh, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Have the actors of an existing handle constructed; doesn't wait."""
    mesh._spawn(args, kwargs, proc_mesh)


def class_of(mesh: ActorMesh[Any]) -> type:
    """Return the present class of a mesh's actors."""
    return mesh._class


def spawned_as(mesh: ActorMesh[Any]) -> str:
    """Return the name that a mesh's actors were spawned with."""
    return mesh._name


def actor_id_of(mesh: ActorMesh[Any]) -> int:
    """Return the number that the actors of one spawn have in common, in any process."""
    return mesh._actor_id


def take_class(mesh: ActorMesh[Any], cls: type) -> None:
    """Record that a mesh's actors have a new class: endpoints are looked up again."""
    mesh._reload(cls)


def check_class(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if a class can't be spawned with these arguments.

    Raises:
        WrongArguments: (a TypeError) if it's no Actor, or they don't fit its constructor.
    """
    if not inspect.isclass(cls) or not issubclass(cls, Actor):
        raise WrongArguments(f"spawn takes a subclass of Actor, not {cls!r}")
    _check_constructor(cls, args, kwargs)


def _check_names(mesh: ActorMesh[Any]) -> None:
    """Refuse endpoints that can't be called, because a mesh of actors has another attribute of that name."""
    cls = mesh._class
    taken = [
        name
        for name in dir(cls)
        if (hasattr(ActorMesh, name) or name in mesh.__dict__)
        and isinstance(inspect.getattr_static(cls, name), EndpointProperty)
    ]
    if taken:
        names = " and ".join(f"{cls.__name__}.{name}" for name in taken)
        raise MeshUsageError(
            f"{names} can't be {'an endpoint' if len(taken) == 1 else 'endpoints'}: the mesh that "
            f"spawn() returns has {', '.join(f'.{name}' for name in taken)} itself. Give "
            f"{'it another name' if len(taken) == 1 else 'them other names'}"
        )


def _check_constructor(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        inspect.signature(cls).bind(*args, **kwargs)
    except TypeError as error:
        raise WrongArguments(
            f"{cls.__name__}{inspect.signature(cls)} was spawned with other arguments: {error}"
        ) from None
    except ValueError:
        return  # it has no signature


class NotAnEndpoint:
    """A plain method of an actor mesh's class: `as_endpoint` makes an endpoint of it."""

    def __init__(self, mesh: ActorMesh[Any], name: str) -> None:
        self._mesh = mesh
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise WrongArguments(
            f"{self._mesh._class.__name__}.{self._name} is no endpoint: decorate it with @endpoint, "
            f"or use as_endpoint(mesh.{self._name}).call(...)"
        )

    def __getattr__(self, adverb: str) -> Any:
        raise AttributeError(
            f"{self._mesh._class.__name__}.{self._name} is no endpoint and has no .{adverb}: decorate "
            f"it with @endpoint, or use as_endpoint(mesh.{self._name}).{adverb}(...)"
        )


def as_endpoint(method: Any, *, propagate: Any = None, explicit_response_port: bool = False) -> Any:
    """Return an endpoint for a method of a mesh's class that isn't decorated.

    >>> as_endpoint(mesh.plain_method).call()  # doctest: +SKIP
    """
    if isinstance(method, Endpoint):
        return method
    if isinstance(method, NotAnEndpoint):
        return method._mesh._as_endpoint(method._name)
    raise TypeError(f"as_endpoint takes a method of an actor mesh, not {method!r}")


def send(
    endpoint: Endpoint[..., Any], args: Any, kwargs: Any, port: Any = None, selection: str = "all"
) -> None:
    """Send a message to an endpoint; answers go to `port`, if one is given."""
    endpoint.send(args, kwargs, port, selection)
