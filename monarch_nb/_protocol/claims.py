"""Types of the notes in claim files (`_wire/claim`) and connection files: JSON with which the holder
describes itself.
"""

from __future__ import annotations

from monarch_nb._protocol.kept import Kept
from monarch_nb._protocol.states import ClaimState

__all__ = ["ClaimNote", "ConnectionNote", "KeeperNote"]


class ClaimNote(Kept, frozen=True):
    """The note in a claim file of the controller, or relay, that holds the name of a mesh.

    Attributes:
        pid: pid of that process; 0: not written yet.
        who: the program that has started it; empty: not written yet.
    """

    state: ClaimState = ClaimState.STARTING
    pid: int = 0
    who: str = ""

    @classmethod
    def read(cls, data: bytes) -> ClaimNote:
        """Return the note in a claim file; the default, if there is none (yet) or it isn't such a note.

        >>> ClaimNote.read(b'{"state": "ending", "pid": 7, "who": "a.ipynb"}').pid, ClaimNote.read(b"").who
        (7, '')
        """
        try:
            return cls.of_json(data)
        except ValueError:
            return cls()


class KeeperNote(Kept, frozen=True, omit_defaults=True):
    """The note in a claim file of a keeper: a process that keeps an interpreter warm for programs of one
    environment.

    Attributes:
        start_time: of the keeper, in ticks since boot.
        python: the interpreter's executable.
        until: when the keeper ends, in seconds since the epoch.
        controller: pid, start time and directory of the controller that is warm; None: none is.
    """

    machine: str
    pid: int
    start_time: int | None
    python: str
    until: float
    controller: tuple[int, int | None, str] | None = None


class ConnectionNote(Kept, frozen=True, omit_defaults=True):
    """The content of a connection file: where programs find a controller.

    Attributes:
        name: of the mesh; of a program's own its pid.
        start_time: start of the process `pid`, in ticks since boot; None: not recorded by its version.
        machine: machine that it runs on; empty: not recorded by its version.
        wire_version: version of the wire format that it understands.
        started: when the mesh was started, in seconds since the epoch.
        journal: the directory of its journal.
        host: index that programs have there; 0: on the controller's machine. Else `pid` is the relay's.
        via: the machine that the mesh, which is this user's, is reached by: `me@login`; empty: another one.
    """

    name: str
    pid: int
    directory: str
    start_time: int | None = None
    machine: str = ""
    hostname: str = ""
    wire_version: int = 0
    started: float = 0.0
    journal: str = ""
    host: int = 0
    via: str = ""
