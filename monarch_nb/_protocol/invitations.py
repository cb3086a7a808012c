"""Types of requests about invitations for hosts of an engine."""

from __future__ import annotations

from monarch_nb._protocol.base import Record, Request


class Invited(Record, frozen=True):
    """The reserved places of an invitation.

    Attributes:
        hosts: their indices.
        invitation: what lets hosts in, as JSON: a secret.
        guest: public key of the invitation, by which it's withdrawn.
    """

    hosts: list[int]
    invitation: str
    guest: str


class Invite(Request[Invited], frozen=True):
    """Reserve places for hosts that will come.

    Attributes:
        name: of the mesh.
        labels: names of the hosts, if they are known.
        network: which of the controller's addresses they can reach; empty: any.
        ports: first and last port to listen at; empty: any.
        scratch: directory on the hosts for sockets and segments.
    """

    name: str
    num: int
    expires_s: float
    labels: list[str] = []
    network: str = ""
    ports: list[int] = []
    scratch: str = ""


class Withdraw(Request[None], frozen=True):
    """Make an invitation void; places that nobody has taken are given up."""

    guest: str


class Refusals(Request[list[str]], frozen=True):
    """Return a line about each host that has knocked lately and wasn't let in, with the reason."""
