"""The invitation that admits hosts of an engine to a mesh: one file, the same for all of them.

It has the addresses of the controller, its public key, and a key pair that is good for nothing but a knock.
Whoever knocks says which key it has made for itself, so that no secret of a host ever travels; it's told its
place, or why there's none. Knock and answer are JSON: nothing of a stranger's is unpickled.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

VERSION = 1
MAX_BYTES = 1 << 16
TOKEN = "mnb:"
"""Prefix of an invitation in one line; no mesh's name can begin with it."""
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""Z85 text of 32 bytes."""
SUFFIX = ".join"
_FAR = re.compile(r"(?:[\w.+-]+@)?[A-Za-z0-9][\w.-]*:[A-Za-z0-9_~/][\w.~/+-]*", re.ASCII)
Made = TypeVar("Made")


class InvitationError(ValueError):
    """The error of a text that isn't a valid invitation, knock or answer; its text gives the reason."""


def is_invitation(text: str) -> bool:
    """Return whether a typed word is an invitation, or a file, and no mesh's name.

    >>> is_invitation("lab"), is_invitation("lab.observer-1.join"), is_invitation("./lab")
    (False, True, True)
    """
    return text.startswith(TOKEN) or "/" in text or "." in text


def is_far(text: str) -> bool:
    """Return whether a typed word is a mesh on another machine, which ssh reaches.

    >>> is_far("me@login.lab:big"), is_far("login:~/big.join"), is_far("big"), is_far("mnb:eyJ")
    (True, True, False, False)
    """
    return not text.startswith(TOKEN) and _FAR.fullmatch(text) is not None


def is_file(text: str) -> bool:
    """Return whether what stands behind a machine's name is a file there, and no mesh's name.

    >>> is_file("big"), is_file("big.join"), is_file("~/jobs/7")
    (False, True, True)
    """
    return "/" in text or text.endswith(SUFFIX)


@dataclass(frozen=True)
class Invitation:
    """An invitation to a mesh: the addresses of its controller, and keys to ask for a place.

    Attributes:
        wire_version: protocol of the mesh.
        addresses: addresses of the controller, in the order in which they are tried: tcp://10.0.0.5:29400.
        controller_key: the controller's public key.
        guest_public, guest_secret: key pair that may only knock.
        places: how many hosts may come.
        scratch: directory for sockets and segments; variables are expanded on each host.
        role: role of the invited program: `observer`; empty: the invitation is for hosts.
    """

    mesh: str
    wire_version: int
    addresses: tuple[str, ...]
    controller_key: str
    guest_public: str
    guest_secret: str
    places: int
    scratch: str = ""
    role: str = ""

    def to_json(self) -> str:
        """Return the invitation as a file's text. It's a secret: mode 0600, or standard input."""
        return json.dumps({"version": VERSION, **asdict(self)})

    def to_token(self) -> str:
        """Return the invitation as one line, which is the same secret."""
        return TOKEN + base64.urlsafe_b64encode(self.to_json().encode()).decode()

    @staticmethod
    def is_token(text: str) -> bool:
        """Return whether a text is meant to be an invitation in one line."""
        return text.startswith(TOKEN)

    @classmethod
    def from_token(cls, text: str) -> Invitation:
        """Return the invitation of a token that `to_token` has made.

        Raises:
            InvitationError: saying what is wrong.
        """
        try:
            data = base64.b64decode(text[len(TOKEN) :].encode(), b"-_", validate=True)
        except ValueError:
            raise InvitationError("this invitation was cut off, or is none: copy the whole line") from None
        return cls.from_json(data)

    @classmethod
    def from_json(cls, text: str | bytes) -> Invitation:
        """Read an invitation.

        Raises:
            InvitationError: saying what is wrong.
        """
        found = _object(text, "invitation")
        if found.pop("version", None) != VERSION:
            raise InvitationError(
                f"an invitation of another version: this monarch_nb reads version {VERSION}"
            )
        made = _made(cls, {**found, "addresses": tuple(found.get("addresses") or ())}, "invitation")
        if not made.addresses or not all(
            isinstance(a, str) and a.startswith("tcp://") for a in made.addresses
        ):
            raise InvitationError("an invitation without an address of the mesh")
        _check_keys(made.controller_key, made.guest_public, made.guest_secret)
        if not isinstance(made.mesh, str) or not isinstance(made.role, str):
            raise InvitationError("an invitation whose fields are none")
        return made


@dataclass(frozen=True)
class Knock:
    """The message by which a launcher asks for a place in a mesh.

    Attributes:
        public: public key that it has made for the host process.
        node: name of its machine.
        address: address by which it has come.
        place: requested place, where the engine numbers its hosts; None: any.
    """

    public: str
    node: str
    wire_version: int
    address: str
    place: int | None = None

    def to_json(self) -> bytes:
        """Return it as a message."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Knock:
        """Read a knock.

        Raises:
            InvitationError: saying what is wrong.
        """
        made = _made(cls, _object(text, "knock"), "knock")
        _check_keys(made.public)
        if not isinstance(made.node, str) or not 0 < len(made.node) <= 255 or not made.node.isprintable():
            raise InvitationError("a knock without a node's name")
        if (
            type(made.wire_version) is not int
            or type(made.place) not in (int, type(None))
            or type(made.address) is not str
        ):
            raise InvitationError("a knock whose fields are none")
        return made


@dataclass(frozen=True)
class Admission:
    """The answer to a knock: a place in the mesh, or the reason why there's none (`error`)."""

    host: int = 0
    generation: int = 0
    label: str = ""
    error: str = ""

    def to_json(self) -> bytes:
        """Return it as a message."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Admission:
        """Read an answer.

        Raises:
            InvitationError: if it's none.
        """
        return _made(cls, _object(text, "answer"), "answer")


def _object(text: str | bytes, what: str) -> dict[str, Any]:
    if len(text) > MAX_BYTES:
        raise InvitationError(f"this is no {what}: it has {len(text):,} bytes")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InvitationError(f"this is no {what}: it isn't JSON") from None
    if not isinstance(found, dict):
        raise InvitationError(f"this is no {what}")
    return found


def _made(cls: type[Made], fields: dict[str, Any], what: str) -> Made:
    try:
        return cls(**fields)
    except TypeError as error:
        raise InvitationError(f"this is no {what}: {str(error).partition(') ')[2] or error}") from None


def _check_keys(*keys: Any) -> None:
    if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys):
        raise InvitationError("a key that is none")
