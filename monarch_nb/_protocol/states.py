"""The states of hosts, ranks and their processes. Each is a word, used in messages, journal and JSON."""

from __future__ import annotations

from enum import StrEnum


class _State(StrEnum):
    """The base of states: words that are displayed as they are."""

    def __repr__(self) -> str:
        return repr(self.value)


class HostState(_State):
    """A machine of a mesh, as the controller knows it."""

    EXPECTED = "expected"
    """It hasn't joined yet."""
    UP = "up"
    LEAVING = "leaving"
    """It's about to end, on purpose."""
    LOST = "lost"
    STOPPED = "stopped"


class ProcState(_State):
    """The state of a rank's process, as its host process and the controller know it."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    """It's about to end, on purpose."""
    LOST = "lost"
    STOPPED = "stopped"


class RankState(_State):
    """The state of a rank, as it is displayed."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    DEBUGGING = "debugging"
    """It stands at a breakpoint."""
    UNRESPONSIVE = "unresponsive"
    """It lives, but doesn't react."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    LOST = "lost"


class StopState(_State):
    """The state of a thread that has stopped at a breakpoint."""

    STOPPED = "stopped"
    RUNNING = "running"
    """It executes a step, and will stop again."""


class StopMode(_State):
    """The kind of lines that a stopped thread accepts in the debugger."""

    PDB = "pdb"
    PYTHON = "interact"


class StopReason(_State):
    """The reason why a thread stands in the debugger."""

    BREAKPOINT = "breakpoint"
    NEXT = "next"
    STEP = "step"
    RETURN = "return"
    UNTIL = "until"
    EXCEPTION = "exception"
    POST_MORTEM = "post-mortem"


class StacksBy(_State):
    """The method by which the stacks of a rank were taken."""

    ASKED = "asked"
    """The rank itself has answered."""
    FAULTHANDLER = "faulthandler"
    """The rank has written them on a signal."""
    PY_SPY = "py-spy"
    PY_SPY_NATIVE = "py-spy, with native frames"


class WaitKind(_State):
    """The kind of thing that a thread is blocked on."""

    UNKNOWN = ""
    AWAIT = "await"
    BACKWARD = "backward"
    BREAKPOINT = "breakpoint"
    CALL = "call"
    CHANNEL = "channel"
    CHECKPOINT = "checkpoint"
    DATA = "data"
    INPUT = "input"
    """The keyboard, which doesn't exist on a rank."""
    LOCK = "lock"
    OPEN = "open"
    PROCESS = "process"
    QUESTION = "question"
    """A line that the user of the waiting cell or call types."""
    QUEUE = "queue"
    RECV = "recv"
    """Data from a socket or a file."""
    SLEEP = "sleep"
    THREAD = "thread"


class StartMethod(_State):
    """The way in which the processes of ranks are started."""

    FORK = "fork"
    """From a warm interpreter."""
    SPAWN = "spawn"
    """Each as a fresh interpreter."""


class CellStatus(_State):
    """The status of a cell, on a rank or on all; other entries of the journal have one, too."""

    RUNNING = "running"
    """It hasn't ended."""
    OK = "ok"
    ERROR = "error"
    """It has raised."""
    LOST = "lost"
    """The rank has died."""
    INTERRUPTED = "interrupted"


class EndReason(_State):
    """The reason why a cell is made to end; the third reason is `timeout SECONDS`."""

    USER = "user"
    FAILURE = "failure"
    """It has raised on another rank, or a rank has died."""


class EntryKind(_State):
    """The kind of an entry of the journal."""

    CELL = "cell"
    CALLS = "calls"
    VARIABLES = "variables"
    COMMAND = "command"
    START = "start"
    RESIZE = "resize"
    HEAL = "heal"
    LOST = "lost"
    NOTE = "note"


class OnFailure(_State):
    """The action taken when a rank of a group dies."""

    STOP = "stop"
    """None: uses of the group raise until it is healed."""
    HEAL = "heal"
    SHRINK = "shrink"
    CALL = "call"
    """A function of a program is called."""


class CheckpointKind(_State):
    """The kind of state that the members of an actor save: each its own, the same one, or shards."""

    OWN = "own"
    REPLICATED = "replicated"
    SHARDED = "sharded"


class CheckpointPhase(_State):
    """A phase at which members that save together meet; there are others between."""

    BEGIN = "begin"
    DONE = "done"


class ClaimState(_State):
    """The state of a controller that has the right to a name."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
