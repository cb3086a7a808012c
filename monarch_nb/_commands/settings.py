"""The settings of `%mesh set`: their values and their effects. `_magics.settings` reads and changes them."""

from __future__ import annotations

from typing import NamedTuple


class Setting(NamedTuple):
    """A setting of `%mesh set`. It belongs to the mesh in use, or, without one, to this kernel.

    Attributes:
        takes: the values that it accepts, in words.
        about: what the setting does.
        of_mesh: whether it belongs to a mesh, so that there must be one.
    """

    takes: str
    about: str
    of_mesh: bool = True


SETTINGS: dict[str, Setting] = {
    "sync": Setting("warn|watch|strict|off", "before a cell, when a module's file has changed"),
    "breakpoints": Setting("stop|skip", "what breakpoints do"),
    "debug-on-error": Setting("on|off", "whether an error stops where it's raised"),
    "debug-timeout": Setting("TIME", "how long a rank waits at a breakpoint that nobody debugs"),
    "journal": Setting("DAYS|on|off", "how long cells' sources and output are kept on disk"),
    "notice": Setting("TIME|off", "how long before hosts are taken away ranks are told and states saved"),
    "why-after": Setting(
        "TIME|off", "how long a cell may stand still before the reason is shown", of_mesh=False
    ),
}
