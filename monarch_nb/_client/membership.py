"""Joining another user's mesh, by an invitation made with `%mesh share`.

Whoever has it knocks, with a key of their own that stays on their machine; then a relay (`_host/relay`) keeps
one connection, and programs of this user find the mesh under its name as if it were theirs.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from monarch_nb._client import connection_file, launch
from monarch_nb._client.connection_file import Connection
from monarch_nb._client.mesh_name import check_mesh_name
from monarch_nb._host.config import HostConfig
from monarch_nb._host.launcher import LauncherError, Place, knock, read_invitation
from monarch_nb._protocol.kept import Kept
from monarch_nb._protocol.roles import Role
from monarch_nb._wire.directory import new_directory
from monarch_nb._wire.invitation import Invitation, InvitationError
from monarch_nb._wire.keys import KeyPair
from monarch_nb.exceptions import MeshStartError, MeshUsageError, NameTaken

_MAX_KEY_BYTES = 4096


def write(path: str, invitation: str) -> None:
    """Write an invitation to a new file that only this user can read.

    Raises:
        MeshUsageError: if there is such a file, or can't be one.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise MeshUsageError(
            f"share: the invitation can't be written to {path}: {error.strerror}; name another file: "
            "%mesh share --file FILE"
        ) from None
    with open(fd, "w") as file:
        file.write(invitation)


def join(text: str, name: str | None = None) -> Connection:
    """Join a mesh by an invitation; return the connection for programs of this user from now on.

    Args:
        text: a file, or the invitation itself as one line.
        name: what the mesh is called here; without it, as its owner calls it.

    Raises:
        MeshUsageError: if that's no invitation, or not for programs.
        NameTaken: if a mesh runs here by that name.
        MeshStartError: if the mesh can't be reached, or lets nobody in by it.
    """
    invitation = _read(text)
    name = check_mesh_name(name or invitation.mesh)
    known = _connected(name, invitation)
    if known is not None:
        return known
    try:
        place = knock(invitation, whoami(), None, _own_keys(invitation))
    except (LauncherError, InvitationError) as error:
        raise MeshStartError(f"mesh {invitation.mesh!r} can't be attached to: {error}") from None
    _keep(_key_path(invitation), place.keys, place.admission.host)
    via = place.address.removeprefix("tcp://") if invitation.role == Role.OWNER.word else ""
    return relayed(name, place, os.path.join(new_directory(), "member"), via=via)


def _read(text: str) -> Invitation:
    try:
        found = Invitation.from_token(text) if Invitation.is_token(text) else read_invitation(text)
    except (LauncherError, InvitationError) as error:
        raise MeshUsageError(f"attach: {error}; %mesh share writes invitations") from None
    if not found.role:
        raise MeshUsageError(
            f"attach: this invitation lets hosts in, and no programs: monarch-nb host --join {text}; one for "
            "programs: %mesh share"
        )
    return found


def _connected(name: str, invitation: Invitation) -> Connection | None:
    """Return the existing connection by this invitation, if there is one.

    Raises:
        NameTaken: if it's another mesh.
    """
    found = next((c for c in launch.list_connections() if c.name == name), None)
    if found is None:
        return None
    if found.host and os.path.exists(_key_path(invitation)) and _is_of(found, invitation):
        return found
    raise NameTaken(
        f"a mesh {name!r} runs here already: %mesh attach FILE --as NAME gives that one another name"
    )


def _is_of(connection: Connection, invitation: Invitation) -> bool:
    """Return whether a relay was started with this invitation."""
    found = _read_key_file(invitation)
    return found is not None and found.host == connection.host


def whoami() -> str:
    """Return this user, and machine, in words: `ada@lab7`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, in a container
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


# --- the key that stays on this machine


class KeyFile(Kept, frozen=True):
    """The key that this user has for one invitation.

    Attributes:
        public, secret: the pair, in Z85.
        host: index that its programs have in that mesh; 0: nobody has joined with the key yet.
    """

    public: str
    secret: str
    host: int = 0


def _key_path(invitation: Invitation) -> str:
    digest = hashlib.sha256(invitation.guest_public.encode()).hexdigest()[:16]
    return os.path.join(launch.runtime_directory(), f"monarch_nb.member-{digest}.key")


def _own_keys(invitation: Invitation) -> KeyPair:
    """Return this user's key for an invitation: the same key each time."""
    if (found := _read_key_file(invitation)) is not None:
        return KeyPair(found.public, found.secret)
    keys = KeyPair.new()
    _keep(_key_path(invitation), keys, 0)
    return keys


def _read_key_file(invitation: Invitation) -> KeyFile | None:
    with suppress(OSError, ValueError), open(_key_path(invitation), "rb") as file:
        return KeyFile.of_json(file.read(_MAX_KEY_BYTES))
    return None


def _keep(path: str, keys: KeyPair, host: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(KeyFile(keys.public, keys.secret, host).as_json())


# --- the relay


def relayed(name: str, place: Place, directory: str, road: Sequence[str] = (), via: str = "") -> Connection:
    """Start a relay; return its connection.

    Args:
        directory: where its sockets lie; it's removed in the end.
        road, via: see `HostConfig`.

    Raises:
        MeshStartError: with what it wrote, if it ended instead.
    """
    path = launch.connection_path(name)
    config = HostConfig(
        host=place.admission.host,
        controller=place.address,
        controller_key=place.controller_key,
        public=place.keys.public,
        secret=place.keys.secret,
        directory=directory,
        name=name,
        connection_file=path,
        sys_path=[os.path.abspath(p) for p in sys.path if p],
        log=os.environ.get("MONARCH_NB_HOST_LOG"),
        warm=False,
        road=tuple(road),
        via=via,
    )
    launch.start_host_process(config)
    found = connection_file.read(path)
    if found is None:
        raise MeshStartError(f"mesh {name!r} can't be attached to: its relay has ended at once")
    return found
