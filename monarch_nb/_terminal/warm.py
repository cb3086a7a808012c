"""Implements `monarch-nb warm`: keeps an interpreter warm, lists warm interpreters, and ends them."""

from __future__ import annotations

from contextlib import suppress

from monarch_nb._client import warm
from monarch_nb._client.warm import Kept
from monarch_nb._client.warm_key import differences, requirements
from monarch_nb._host.controller.handover import read_facts

DEFAULT_S = 1800.0


def kept(for_s: float | None) -> str:
    """Keep an interpreter warm, and say until when."""
    found, is_new = warm.keep_warm(for_s or DEFAULT_S)
    if not is_new:
        return (
            f"this environment is warm already, until {found.until_text} (pid {found.pid}). For another "
            "time: monarch-nb warm --stop first"
        )
    return (
        f"this environment is warm until {found.until_text}, longer if it is used: the next program "
        "that starts a mesh takes the interpreter, and another one is warmed up. End it: monarch-nb "
        "warm --stop"
    )


def stopped() -> str:
    """End all that is kept warm."""
    found = warm.keepers()
    for each in found:
        warm.stop(each)
    return "nothing is kept warm any more" if found else "nothing was kept warm"


def status() -> str:
    """Return the list of warm interpreters as text."""
    found = warm.keepers()
    if not found:
        return "nothing is kept warm. Keep this environment warm: monarch-nb warm"
    return "\n".join(f"{each.python}: {_state(each)} (pid {each.pid}){_for_whom(each)}" for each in found)


def _state(each: Kept) -> str:
    return (
        f"warm until {each.until_text}"
        if each.controller is not None
        else "an interpreter is being warmed up"
    )


def _for_whom(each: Kept) -> str:
    """Return why programs that are started here wouldn't take it; empty if they would, or nobody can say."""
    with suppress(OSError, ValueError):
        differ = (
            differences(requirements(), read_facts(each.controller.directory).requirements)
            if each.controller
            else []
        )
        if differ:
            return f"; not for programs of this terminal: differs in {', '.join(differ)}"
    return ""
