"""Which role each request needs: none is forgotten, and none that changes something is an observer's."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from monarch_nb import _protocol
from monarch_nb._host.controller.controller import ControllerProcess
from monarch_nb._host.controller.permissions import NEEDS, needed, refusal
from monarch_nb._protocol.base import Request
from monarch_nb._protocol.roles import Role
from monarch_nb._workspace import answers
from monarch_nb.status import messages

OURS = ("monarch_nb._protocol", messages.__name__, answers.__name__)


def requests() -> Iterator[type[Request[Any]]]:
    for module in pkgutil.iter_modules(_protocol.__path__):
        importlib.import_module(f"{_protocol.__name__}.{module.name}")
    for kind in Request.__subclasses__():  # a docstring's example may be among them: it's no module's
        if kind.__module__.startswith(OURS) and hasattr(sys.modules[kind.__module__], kind.__name__):
            yield kind


def test_each_request_of_the_protocol_has_a_role() -> None:
    missing = sorted(kind.__name__ for kind in requests() if kind.wire_name not in NEEDS)
    assert not missing, f"give these a line in _host/controller/permissions.py: {', '.join(missing)}"
    assert len(NEEDS) > 90


def test_no_role_is_of_a_request_that_there_is_not() -> None:
    assert not set(NEEDS) - {kind.wire_name for kind in requests()}


def test_what_nobody_knows_is_the_owners() -> None:
    assert needed("made_up") is Role.OWNER
    assert ControllerProcess.handler_of  # where the owner's requests are noted


@pytest.mark.parametrize(
    "name", ["shut_down", "stop", "share", "unshare", "get_audit", "spawn", "adopt", "invite"]
)
def test_nobody_else_may_end_or_share_a_mesh(name: str) -> None:
    assert needed(name) is Role.OWNER


@pytest.mark.parametrize("name", ["run_cell", "interrupt", "debug_command", "heal", "note", "seen", "stacks"])
def test_an_operator_may_what_an_observer_may_not(name: str) -> None:
    assert needed(name) is Role.OPERATOR


def test_a_refusal_says_which_role_one_has_and_which_it_needs_and_what_to_type() -> None:
    text = refusal("run_cell", Role.OBSERVER, "lab")
    assert "observer" in text and "operator" in text and "%mesh share --role operator" in text
    assert "ask its owner" in refusal("shut_down", Role.OPERATOR, "lab")
