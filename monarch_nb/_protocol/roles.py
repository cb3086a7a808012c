"""Types about sharing a mesh: roles, invitations to other users' programs, and the audit of their actions."""

from __future__ import annotations

from enum import IntEnum

from monarch_nb._protocol.base import Record, Request


class Role(IntEnum):
    """The rights of a program; a higher role includes the rights of all lower ones."""

    OBSERVER = 1
    """Read: status, live state, output, history. It changes nothing."""
    OPERATOR = 2
    """Run cells, interrupt, debug, heal."""
    OWNER = 3
    """Everything; for programs of the user who has started the mesh."""

    @property
    def word(self) -> str:
        """The role's name: `observer`."""
        return self.name.lower()

    @property
    def and_article(self) -> str:
        """The same in a sentence: `an observer`."""
        return f"an {self.word}"


class Shared(Record, frozen=True):
    """A key that was made, and its invitation.

    Attributes:
        key: name of the key: `observer-1`.
        invitation: what lets a program in, as JSON: a secret.
    """

    key: str
    invitation: str


class Share(Request[Shared], frozen=True):
    """Let one other user in.

    Attributes:
        key: name of the key; empty: its role and a number.
        expires_s: until when they may be in the mesh, in seconds from now; None: as long as it runs.
        network: which addresses of the controller they can reach; empty: any.
        own: the invitation is for programs of the mesh's own user on another machine: only then the role may
            be owner.
        stays: an own invitation is good for one machine after the other, as long as the mesh runs; else it
            ends with the programs that came by it.
    """

    role: Role
    key: str = ""
    expires_s: float | None = None
    network: str = ""
    own: bool = False
    stays: bool = False


class KeyRow(Record, frozen=True):
    """A key that lets somebody in.

    Attributes:
        who: the user that has come with it, in their own words: `ada@lab7`; empty: nobody yet.
        peer: address that they have come from.
        programs: programs that they have connected.
        ends: expiry, in seconds since the epoch; None: when the mesh ends.
    """

    key: str
    role: Role
    who: str
    peer: str
    programs: list[str]
    ends: float | None


class ListKeys(Request[list[KeyRow]], frozen=True):
    """Return the members of the mesh besides its owner, by their keys."""


class Unshare(Request[list[KeyRow]], frozen=True):
    """Make a key void, or (empty) all; whoever is connected by it is disconnected at once. Answers with the
    keys that are void now.
    """

    key: str


class Rekeyed(Record, frozen=True):
    """The outcome of new keys.

    Attributes:
        keys: keys of those who had access.
        moved: names of the hosts that have come over to the new keys.
        lost: names of the hosts that were lost meanwhile.
        unjoined: names of the places for hosts that were given up: their invitations are void.
    """

    keys: list[KeyRow]
    moved: list[str]
    lost: list[str]
    unjoined: list[str]


class Rekey(Request[Rekeyed], frozen=True):
    """Replace all keys, and the port: every key handed out before is void, and all programs but the owner's
    are disconnected. Hosts that have joined come over, and lose nothing. Answered when they all have.
    """


class AuditRow(Record, frozen=True):
    """Something that somebody did, or wanted to.

    Attributes:
        when, until: the first and the last of `times` times, seconds since the epoch.
        key: key of the member; empty: the owner.
        who: `ada@lab7`, as the member gives it; of the owner's, the program.
        what: the request: `run cell`.
        detail: a cell's first line.
        refused: why it was refused; empty: it was allowed.
    """

    when: float
    until: float
    key: str
    role: Role
    who: str
    what: str
    detail: str = ""
    refused: str = ""
    times: int = 1


class GetAudit(Request[list[AuditRow]], frozen=True):
    """Return the audit, who asked for what: the last `limit` rows, oldest first."""

    limit: int
