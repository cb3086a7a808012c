"""Types of requests about losses and sizes: policies, heals, resizes; records from which actors are created
again; checkpoints.
"""

from __future__ import annotations

import msgspec

from monarch_nb._protocol.base import Record, Request
from monarch_nb._protocol.states import OnFailure


class ActorSpawned(Request[None], frozen=True):
    """Keep the specification by which actors can be made again.

    Attributes:
        context: the extent they were spawned on, encoded.
        creator: proc and actor (0: none) that own them.
        checkpointed: "own", "replicated" or "sharded" if their state is saved, else empty.
        size_bytes: of the class and the arguments.
        spec: these, encoded; None if they're too large to be kept.
    """

    actor_id: int
    name: str
    procs: tuple[int, ...]
    context: bytes
    creator: tuple[int, int]
    checkpointed: str
    size_bytes: int
    spec: bytes | None


class ActorStopped(Request[None], frozen=True):
    """Forget the specification of actors that were stopped."""

    actor_id: int
    procs: list[int]


class SetPolicy(Request[None], frozen=True):
    """Set the policy for the death of a rank of a group: stop, heal, shrink or call; at most `max_restarts`
    heals in `window_s`.
    """

    group: str
    on_failure: OnFailure
    max_restarts: int
    window_s: float


class Report(msgspec.Struct, forbid_unknown_fields=True):
    """The result of a heal or a resize, sent to the client that asked for it; filled in during the work.

    Attributes:
        ranks: ranks that were started again.
        hosts: hosts that were replaced.
        actors: ranks on which actors were created again, by the actors' name.
        actor_ids: ids of these actors.
        messages: other actions, in words.
        problems: losses that couldn't be repaired, in words.
    """

    ranks: list[int] = []
    hosts: list[str] = []
    actors: dict[str, list[int]] = {}
    actor_ids: list[int] = []
    messages: list[str] = []
    problems: list[str] = []
    seconds: float = 0.0


class Heal(Request[Report], frozen=True):
    """Repair the losses of a group. `procs`: only of these, by whoever wants a mesh that works; None: all
    that is dead.
    """

    group: str
    procs: list[int] | None = None


class Resize(Request[Report], frozen=True):
    """Change the sizes of a group; without sizes: leave out the lost parts.

    Attributes:
        joined: hosts that are up and have no ranks: new rows are put on these, in their order.
        leave: hosts that the group gives up; then there are no sizes.
        force: start as many ranks as the system allows, though the machine seems too small for them.
    """

    group: str
    sizes: dict[str, int] | None = None
    joined: list[int] = []
    leave: list[int] = []
    force: bool = False


# --- checkpoints


class Gathered(Record, frozen=True):
    """The answer once all members have reached a phase: the checkpoint's directory, and their values,
    encoded.
    """

    path: str
    values: list[bytes]


class CheckpointGather(Request[Gathered], frozen=True):
    """Wait with a rank that saves until all members have got to the same phase.

    Attributes:
        version: number of calls before it.
        phase: begin, done, or one between.
        slot: the member's number, of `size`.
        epoch: as the controller has told it.
        value: the value for the other members, encoded.
        directory: directory of the checkpoints; empty: in the journal's.
        keep: how many checkpoints are kept.
    """

    actor_id: int
    version: int
    phase: str
    slot: int
    size: int
    epoch: int
    value: bytes
    directory: str | None
    keep: int


class CheckpointFailed(Request[str], frozen=True):
    """A rank doesn't save any more: it can't write, or (no `reason`) has heard that another one can't. The
    answer says which one couldn't first, and why.

    Attributes:
        path: what was written so far.
        asked: whether a client has asked for this checkpoint.
    """

    actor_id: int
    version: int
    epoch: int
    slot: int
    size: int
    path: str
    reason: str
    asked: bool


class Resume(Record, frozen=True):
    """The checkpoint that an actor goes on from.

    Attributes:
        epoch: how often the actors of its spawn have begun anew.
        version: after how many calls it was saved; None: there's none, only the epoch is told.
        peer: proc of a rank that has it in memory; 0: none.
        path: where it lies on disk; empty: nowhere.
    """

    epoch: int
    version: int | None = None
    peer: int = 0
    path: str = ""


class Respawn(Record, frozen=True):
    """The request to create an actor again; `spec`: the arguments of its spawn, encoded by the spawning
    process.
    """

    spec: bytes
    resume: Resume | None
