"""The verb set: how each setting is read and changed. `_commands.settings` defines them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch_nb._commands.parser import Namespace, shortened
from monarch_nb._commands.settings import SETTINGS
from monarch_nb._magics import sync
from monarch_nb._magics.state import State
from monarch_nb._protocol.debugging import DebugSettings
from monarch_nb._units import duration, parse_duration
from monarch_nb.exceptions import MeshUsageError

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh


class Access(NamedTuple):
    """The functions that read and change a setting.

    Attributes:
        read: returns the present value as text.
        change: sets a value, given as text; raises ValueError if it isn't valid.
    """

    read: Callable[[Mesh | None], str]
    change: Callable[[Mesh | None, str], object]


def set_(state: State, arguments: Namespace) -> None:
    """Show the settings, or change one."""
    if arguments.setting is None:
        for name in SETTINGS:
            print(_line(name, _mesh_for(state, arguments, name, must=False)))
        return
    mesh = _mesh_for(state, arguments, arguments.setting, must=True)
    value = " ".join(arguments.value)
    if not value:
        print(_line(arguments.setting, mesh))
        return
    setting = SETTINGS[arguments.setting]
    try:
        ACCESS[arguments.setting].change(mesh, value)
    except (ValueError, KeyError):
        raise MeshUsageError(
            f"%mesh set {arguments.setting}: expected {setting.takes}, not {shortened(value)}"
        ) from None
    print(f"{arguments.setting}: {value}")


def _mesh_for(state: State, arguments: Namespace, name: str, *, must: bool) -> Mesh | None:
    if not SETTINGS[name].of_mesh or (not must and arguments.name is None and state.current is None):
        return None
    return state.mesh(arguments.name)


def _line(name: str, mesh: Mesh | None) -> str:
    setting = SETTINGS[name]
    holds = ACCESS[name].read(mesh) if mesh is not None or not setting.of_mesh else "(no mesh is in use)"
    return f"{name:<15} {holds:<10} {setting.takes:<12} {setting.about}"


def _debugger(mesh: Mesh | None, **changes: Any) -> DebugSettings:
    """Return the settings of a mesh's debugger, after changes."""
    assert mesh is not None
    return mesh.debugger().set(**changes)


def _choice(
    name: str, choices: Mapping[str, bool]
) -> tuple[Callable[[Mesh | None], str], Callable[[Mesh | None, str], object]]:
    """Return how a setting of two values is read and changed."""

    def read(mesh: Mesh | None) -> str:
        holds = getattr(_debugger(mesh), name)
        return next(text for text, value in choices.items() if value == holds)

    return read, lambda mesh, text: _debugger(mesh, **{name: choices[text]})


def _why_after(_mesh: Mesh | None) -> str:
    from monarch_nb._why.settings import why_after_s

    seconds = why_after_s()
    return "off" if seconds is None else duration(seconds)


def _set_why_after(_mesh: Mesh | None, text: str) -> None:
    from monarch_nb._why.settings import set_why_after

    set_why_after(None if text == "off" else parse_duration(text))


def _journal(mesh: Mesh | None) -> str:
    assert mesh is not None
    found = mesh.journal.settings()
    return "off" if found.off else _days(found.keep_s)


def _set_journal(mesh: Mesh | None, text: str) -> None:
    assert mesh is not None
    days = re.fullmatch(r"([1-9][0-9]{0,3})\s*(d|days?)?", text)
    if days is None and text not in ("on", "off"):
        raise ValueError(text)
    found = mesh.journal.settings(off=text == "off", keep_s=None if days is None else int(days[1]) * 86400.0)
    if found.off:
        print(
            "sources and output of cells are not kept from now on; those kept so far are in "
            f"{found.directory}"
        )
    elif found.trouble:
        print(f"it can't be written yet: {found.trouble}")
    else:
        print(f"cells' sources and what they print are kept for {_days(found.keep_s)} in {found.directory}")


def _days(seconds: float) -> str:
    num = seconds / 86400
    return f"{num:g} day{'s' * (num != 1)}"


def _notice(mesh: Mesh | None) -> str:
    assert mesh is not None
    found = mesh.notice()
    return "off" if found is None else duration(found)


def _set_notice(mesh: Mesh | None, text: str) -> None:
    assert mesh is not None
    mesh.set_notice(None if text == "off" else parse_duration(text))


ACCESS: dict[str, Access] = {
    "sync": Access(sync.read_mode, sync.set_mode),
    "breakpoints": Access(*_choice("skip", {"stop": False, "skip": True})),
    "debug-on-error": Access(*_choice("on_error", {"on": True, "off": False})),
    "debug-timeout": Access(
        lambda mesh: duration(_debugger(mesh).abandoned_s),
        lambda mesh, text: _debugger(mesh, abandoned_s=parse_duration(text)),
    ),
    "journal": Access(_journal, _set_journal),
    "notice": Access(_notice, _set_notice),
    "why-after": Access(_why_after, _set_why_after),
}
