"""The settings of this program for all its meshes (`monarch_nb.config`). None: the default of each place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Preferences:
    """The settings of this process for all its meshes.

    Attributes:
        shows_output: whether the output of ranks is shown here.
        stop_s: seconds that ranks have to exit before they're killed.
        attach_s: seconds that a worker has to answer.
        request_s: seconds that a host process has to answer.
    """

    shows_output: bool = True
    stop_s: float | None = None
    attach_s: float | None = None
    request_s: float | None = None


preferences = Preferences()
