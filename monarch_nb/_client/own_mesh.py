"""Attaches to a mesh of this user that runs on another machine, by ssh: one connection, outwards.

Who may log in there as this user may do everything with the mesh there. So a program there makes a key with
the role owner, ssh brings the invitation, and a relay (`_host/relay`) uses a socket that ssh forwards.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace

from monarch_nb._client import launch, membership
from monarch_nb._client.connection_file import Connection
from monarch_nb._client.mesh_name import check_mesh_name
from monarch_nb._client.ssh import SSH_FAILED, Done, ssh_command, ssh_trouble
from monarch_nb._client.tunnel import Tunnel, ssh_tunnel
from monarch_nb._host.launcher import LauncherError, knock
from monarch_nb._protocol.roles import Role
from monarch_nb._wire.directory import new_directory, private_directory
from monarch_nb._wire.invitation import TOKEN, Invitation, InvitationError, is_file
from monarch_nb._wire.keys import KeyPair
from monarch_nb.exceptions import MeshStartError, MeshUsageError, NameTaken

ASK_S = 60.0
_NOT_FOUND = 127
_INVITATION = re.compile(rf"{TOKEN}\S+")


def join_far(text: str, name: str | None = None, python: str = "") -> Connection:
    """Connect to a mesh on another machine; return the connection for programs here from now on.

    Args:
        text: `[USER@]MACHINE:NAME`, the machine as ssh knows it; or `MACHINE:FILE`, an invitation of one's
            own that lies there, of a mesh on a machine that is reached from there: a node of a job.
        name: what the mesh is called here; without it, as there.
        python: an interpreter there that has monarch_nb; without it, `monarch-nb` of a login shell is asked.

    Raises:
        NameTaken: if another mesh runs here by that name.
        MeshStartError: if the machine can't be reached, has no such mesh, or the mesh lets nobody in.
    """
    machine, _, what = text.partition(":")
    invitation = None
    if is_file(what):
        invitation = _read(machine, what)
    far_name = check_mesh_name(what if invitation is None else invitation.mesh)
    name = check_mesh_name(name or far_name)
    known = next((c for c in launch.list_connections() if c.name == name), None)
    if known is not None and known.via == text:
        return known
    if known is not None:
        raise NameTaken(f"a mesh {name!r} runs here already: give that one another name by --as NAME")
    invitation = invitation or _ask(machine, far_name, python)
    if invitation.role != Role.OWNER.word:
        raise MeshUsageError(
            f"attach: {text} is an invitation for {invitation.role or 'host'}s, which is given to others; "
            "one of one's own is written by: monarch-nb share NAME --own --file FILE"
        )
    return join_by(name, text, ssh_tunnel(machine), invitation)


def join_by(name: str, via: str, tunnel: Tunnel, invitation: Invitation) -> Connection:
    """Connect to a mesh by an invitation of one's own, through a tunnel; return the connection for programs
    here from now on.

    Args:
        name: what the mesh is called here.
        via: how it was reached, in words: the machine and the invitation's file.

    Raises:
        MeshStartError: if the tunnel leads nowhere, or the mesh lets nobody in.
    """
    folder = new_directory()
    try:
        return _joined(name, via, tunnel, invitation, os.path.join(folder, "member"))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _joined(name: str, via: str, tunnel: Tunnel, invitation: Invitation, directory: str) -> Connection:
    """Knock by one address after the other, as they're reached there; return the relay's connection.

    Args:
        directory: where the relay's sockets will lie.
    """
    private_directory(directory)
    socket, keys, tried = os.path.join(directory, "road"), KeyPair.new(), []
    for address in invitation.addresses:
        try:
            with tunnel.opened(socket, address):
                by_this = replace(invitation, addresses=(address,))
                place = knock(by_this, membership.whoami(), None, keys, f"ipc://{socket}")
        except (LauncherError, InvitationError) as error:
            tried.append(str(error))
        else:
            road = tunnel.command(socket, address)
            return membership.relayed(name, place, directory, road, via)
    raise MeshStartError(f"mesh {invitation.mesh!r} on {tunnel.to} can't be attached to: {'; '.join(tried)}")


def _run(machine: str, script: str) -> Done:
    """Run a shell's line on a machine.

    Raises:
        MeshStartError: if it can't be reached.
    """
    command = [*ssh_command(machine), script]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise MeshStartError("there is no ssh here: apt-get install openssh-client") from None
    except subprocess.TimeoutExpired:
        raise MeshStartError(f"{machine} has given no answer within {ASK_S:g} s: ssh {machine}") from None
    done = Done(ran.returncode, ran.stdout, ran.stderr)
    if done.code == SSH_FAILED:
        raise MeshStartError(ssh_trouble(machine, done))
    return done


def _read(machine: str, path: str) -> Invitation:
    """Return the invitation in a file of this user on a machine."""
    there = f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)
    foreign = "{ echo 'it is not yours' >&2; exit 1; }"
    script = f"[ -O {there} ] || [ ! -e {there} ] || {foreign}; cat < {there}"
    done = _run(machine, f"sh -c {shlex.quote(script)}")
    if done.code:
        raise MeshStartError(f"{machine}: the invitation {path} can't be read ({done.words})")
    try:
        return Invitation.from_json(done.out)
    except InvitationError as error:
        raise MeshStartError(f"{machine}:{path}: {error}") from None


def _ask(machine: str, name: str, python: str) -> Invitation:
    """Have a program on that machine make an invitation to the mesh."""
    program = f"{shlex.quote(python)} -P -m monarch_nb" if python else "monarch-nb"
    script = f"{program} share {shlex.quote(name)} --own --token"
    done = _run(machine, f"bash -l -c {shlex.quote(script)}")
    token = _INVITATION.search(done.out)
    if token is not None:
        try:
            return Invitation.from_token(token[0])
        except InvitationError as error:
            raise MeshStartError(f"{machine} has answered with an invitation that is none: {error}") from None
    if done.code == _NOT_FOUND or "No module named monarch_nb" in done.err:
        raise MeshStartError(
            f"{machine}: {python or 'monarch-nb'} isn't there, or has no monarch_nb: --python PATH names an "
            f"interpreter there that has it ({done.words})"
        )
    raise MeshStartError(f"{machine}: {done.words}")
