"""Every message of the protocol: it comes back as it went, needs no pickle, and one handler of each role
takes it.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pickle
import pkgutil
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import monarch_nb._host
import monarch_nb._protocol
import monarch_nb._workspace
import monarch_nb.status
from monarch_nb._client.session import HandleEvents, Session
from monarch_nb._host.agent.agent import HostAgent
from monarch_nb._host.agent.process import HostProcess
from monarch_nb._protocol.base import Event, Malformed, Record, Request, decode, encode
from monarch_nb._protocol.names import SetName
from monarch_nb._protocol.registry import Handlers, Kind, handled_by
from monarch_nb._protocol.work import Work
from monarch_nb._rank.rank_actors import RankActors
from monarch_nb._rank.worker import Worker
from monarch_nb._runtime.actor_host import ActorHost
from monarch_nb._wire import message as wire


def modules_of(package: types.ModuleType) -> Iterator[types.ModuleType]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def classes_of(package: types.ModuleType) -> list[type]:
    return [
        value for module in modules_of(package) for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]  # fmt: skip


RECORDS = [
    c
    for c in [
        *classes_of(monarch_nb._protocol),
        *classes_of(monarch_nb._workspace),
        *classes_of(monarch_nb.status),
    ]
    if issubclass(c, msgspec.Struct) and c.__module__ != Record.__module__
]
REQUESTS = [c for c in RECORDS if issubclass(c, Request)]
EVENTS = [c for c in RECORDS if issubclass(c, Event)]
CONTROLLER = [c for c in classes_of(monarch_nb._host) if c not in (HostAgent, HostProcess)]
ROLES: dict[str, list[type]] = {
    "controller": CONTROLLER,
    "host agent": [HostAgent],
    "program": [Session, HandleEvents],
    "actors of a program": [ActorHost],
    "rank": [RankActors],
    "handles in a rank": [HandleEvents],
    "main thread of a rank": [Worker],
}
"""Those who share their `Handlers`, by what they are together."""

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    str: st.text(),
    bytes: st.binary(),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    type(None): st.none(),
    msgspec.UnsetType: st.just(msgspec.UNSET),
    Any: plain,
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type as fields have them."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin in (dict, Mapping):
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        return st.fixed_dictionaries({}, optional={name: values_of(each) for name, each in hints.items()})
    names = [f.name for f in dataclass_fields(kind)] if is_dataclass(kind) else list(kind.__struct_fields__)
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hints[name]) for name in names})


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_a_message_comes_back_as_it_went(kind: type, data: st.DataObject) -> None:
    message = data.draw(values_of(kind))
    assert decode(kind, encode(message)) == message
    assert decode(kind, memoryview(encode(message))) == message


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_an_answer_comes_back_as_it_went(kind: type[Request[Any]], data: st.DataObject) -> None:
    answer = data.draw(values_of(kind.answer_type()))
    assert decode(kind.answer_type(), encode(answer)) == answer


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_no_message_needs_pickle(kind: type) -> None:
    """Its fields are numbers, text, bytes, and records of such: nothing that is only made by running code."""
    assert not custom_types(msgspec.inspect.type_info(kind))
    with pytest.raises(Malformed):
        decode(kind, pickle.dumps({"exit": 1}, 5))


def custom_types(info: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    inner = [v for v in vars_of(info) if isinstance(v, msgspec.inspect.Type | msgspec.inspect.Field)]
    own = [info] if isinstance(info, msgspec.inspect.CustomType) else []
    return own + [found for each in inner for found in custom_types(each)]  # type: ignore[arg-type]


def vars_of(info: Any) -> list[Any]:
    found = []
    for name in info.__struct_fields__:
        value = getattr(info, name)
        found += list(value) if isinstance(value, tuple) else [value]
    return found


def test_nothing_of_the_protocol_imports_pickle() -> None:
    for module in modules_of(monarch_nb._protocol):
        assert not {"pickle", "cloudpickle"} & set(vars(module)), module.__name__


def test_names_on_the_wire_are_each_ones_own() -> None:
    names = Counter(kind.wire_name for kind in [*REQUESTS, *EVENTS])
    assert [name for name, num in names.items() if num > 1] == []


@pytest.mark.parametrize("role", ROLES)
def test_a_role_handles_each_type_once(role: str) -> None:
    found = Counter(kind for service in ROLES[role] for kind, _ in handled_by(service))
    assert [kind.wire_name for kind, num in found.items() if num > 1] == []


def kinds_of(*services: type) -> set[Kind]:
    return {kind for service in services for kind, _ in handled_by(service)}


def test_each_request_is_handled_by_the_controller_or_by_ranks_and_each_event_by_somebody() -> None:
    controller, ranks = kinds_of(*CONTROLLER), kinds_of(RankActors)
    assert [
        kind.__name__
        for kind in REQUESTS
        if kind not in (ranks if kind.__module__.endswith(".questions") else controller)
    ] == []
    handled = kinds_of(*(service for services in ROLES.values() for service in services))
    handled |= {monarch_nb._protocol.events.RanksRevived}  # by each transport itself
    assert [kind.__name__ for kind in EVENTS if kind not in handled] == []


@pytest.mark.parametrize(
    "service", dict.fromkeys(c for services in ROLES.values() for c in services), ids=lambda c: c.__name__
)
def test_a_handler_takes_what_it_is_marked_for(service: type) -> None:
    for kind, name in handled_by(service):
        first = list(inspect.signature(getattr(service, name)).parameters.values())[1]
        expected = "Message" if isinstance(kind, Work) else kind.__name__
        assert first.annotation == expected, f"{service.__name__}.{name} is marked for {kind.wire_name}"


def test_each_kind_of_work_is_done_by_main_threads_of_ranks_only() -> None:
    assert kinds_of(Worker) == set(Work)
    others = [service for services in ROLES.values() for service in services if service is not Worker]
    assert not kinds_of(*others) & set(Work)


@pytest.mark.parametrize("work", Work)
def test_a_kind_of_work_is_found_by_the_name_in_the_header(work: Work) -> None:
    message = wire.unpack(wire.pack(wire.CALL, src=1, dst=2, name=work.encode()))
    handler = Handlers(Worker.__new__(Worker)).find(message.name.decode())
    assert handler is not None
    assert handler.kind is work


def test_numbers_of_other_libraries_are_numbers_and_other_objects_are_refused() -> None:
    import numpy as np

    assert decode(dict[str, float], encode({"a": np.float64(0.5), "b": np.int64(3)})) == {"a": 0.5, "b": 3.0}
    assert math.isnan(decode(float, encode(np.float32("nan"))))
    with pytest.raises(TypeError, match="a Handlers can't stand in a control message"):
        encode([Handlers()])


@pytest.mark.parametrize("text", ["b\udcff", "\ud800", "\udfff and \U0010ffff"])
def test_text_that_utf8_cannot_say_crosses_nevertheless(text: str) -> None:
    """Names of files may be any bytes: Python has those that are no UTF-8 as lone surrogates."""
    request = SetName("name", {text: [text, b"\xf4\x8f\xff"]})
    assert decode(SetName, encode(request)) == request
