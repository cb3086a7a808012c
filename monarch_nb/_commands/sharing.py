"""Commands that share a mesh: they let other users in, revoke their access, and show who did what."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from monarch_nb._client import membership
from monarch_nb._client.connection_file import Connection
from monarch_nb._client.launch import find_journal
from monarch_nb._client.own_mesh import join_far
from monarch_nb._commands.parser import Namespace
from monarch_nb._display.table import text_table
from monarch_nb._journal.audit import read
from monarch_nb._protocol.roles import AuditRow, GetAudit, KeyRow, ListKeys, Rekey, Role, Share, Unshare
from monarch_nb._units import duration
from monarch_nb._wire.invitation import Invitation, is_far, is_invitation
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshNotFound, MeshUsageError
from monarch_nb.mesh import Mesh, attach


def share(mesh: Mesh, arguments: Namespace) -> str:
    """Make a key for another user, and an invitation; return how to use it."""
    role = Role.OWNER if arguments.own else Role[arguments.role.upper()]
    asked = Share(
        role, arguments.to or "", arguments.duration, arguments.network or "", arguments.own,
        stays=not arguments.token,
    )  # fmt: skip
    made = session_of(mesh).request(asked)
    until = "as long as it runs" if arguments.duration is None else f"for {duration(arguments.duration)}"
    head = f"{made.key} may be in mesh {mesh.name!r} as {role.and_article} {until}"
    if arguments.token:
        line = Invitation.from_json(made.invitation).to_token()
        return f"{head}. This line lets them in, once; keep it secret:\n%mesh attach {line}"
    path = os.path.abspath(os.path.expanduser(arguments.file or f"{mesh.name}.{made.key}.join"))
    try:
        membership.write(path, made.invitation)
    except MeshUsageError:
        session_of(mesh).request(Unshare(made.key))
        raise
    if arguments.own:
        return f"{head}. On your other machine: %mesh attach MACHINE:{path}, through one that has this file"
    return f"{head}. Give them {path}, which is a secret; they type: %mesh attach FILE"


def unshare(mesh: Mesh, arguments: Namespace) -> str:
    """Revoke the access of another user."""
    if bool(arguments.key) == arguments.all:
        raise MeshUsageError(
            "unshare needs a key: %mesh unshare KEY, or --all; %mesh share --list shows keys"
        )
    gone = session_of(mesh).request(Unshare(arguments.key or ""))
    if not gone:
        return f"mesh {mesh.name!r} wasn't shared"
    who = ", ".join(row.key + (f" ({row.who})" if row.who else "") for row in gone)
    return f"mesh {mesh.name!r} no longer admits: {who}. Cells that they have started go on: %mesh interrupt"


def rekey(mesh: Mesh, _arguments: Namespace) -> str:
    """Replace the keys of a mesh; disconnect everybody but its owner."""
    found = session_of(mesh).request(Rekey())
    who = ", ".join(row.key for row in found.keys) or "nobody"
    facts = [f"mesh {mesh.name!r} has new keys; disconnected: {who}"]
    if found.moved:
        facts.append(f"hosts that have come over: {', '.join(found.moved)}")
    if found.lost:
        facts.append(f"hosts that were lost meanwhile: {', '.join(found.lost)} (%mesh heal)")
    if found.unjoined:
        facts.append(f"hosts that hadn't joined and can't any more: {', '.join(found.unjoined)}")
    return "; ".join(facts) + ". Earlier invitations are invalid: %mesh share"


def list_text(mesh: Mesh) -> str:
    """Return the members of a mesh as a table."""
    rows = session_of(mesh).request(ListKeys())
    if not rows:
        return f"mesh {mesh.name!r} can only be used by its owner. Share it: %mesh share --role observer"
    return text_table(("KEY", "ROLE", "UNTIL", "WHO", "FROM", "PROGRAMS"), [_cells(row) for row in rows])


def _cells(row: KeyRow) -> tuple[str, ...]:
    until = "" if row.ends is None else duration(max(0.0, row.ends - time.time()))
    programs = ", ".join(row.programs) or "-"
    return row.key, row.role.word, until or "it ends", row.who or "nobody yet", row.peer or "-", programs


# --- the audit


class Audit:
    """The audit of a mesh: who did what, oldest first. It displays as a table.

    Attributes:
        rows: its rows.
    """

    def __init__(self, rows: Sequence[AuditRow]) -> None:
        self.rows = list(rows)

    def text(self) -> str:
        """Return a table."""
        head = ("WHEN", "KEY", "ROLE", "WHO", "WHAT", "HOW")
        return (
            text_table(head, [_audit_cells(row) for row in self.rows])
            if self.rows
            else "no actions are recorded"
        )

    __str__ = __repr__ = text


def _audit_cells(row: AuditRow) -> tuple[str, ...]:
    times = f" ({row.times} times)" if row.times > 1 else ""
    what = row.what + (f": {row.detail}" if row.detail else "")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.when))
    how = f"refused: {row.refused}" if row.refused else "done"
    return when, row.key or "-", row.role.word, row.who, what, how + times


def audit(mesh: Mesh, arguments: Namespace) -> Audit:
    """Return the audit of a running mesh: who requested what."""
    return Audit(session_of(mesh).request(GetAudit(arguments.last)))


def audit_of(arguments: Namespace) -> Audit:
    """Return the audit of a mesh, running or ended: who requested what."""
    try:
        return audit(attach(arguments.name, listens=False, observes=True), arguments)
    except MeshNotFound:
        if arguments.name is None:
            raise
        return Audit(read(find_journal(arguments.name), arguments.last))


# --- joining another user's mesh


def joined(arguments: Namespace) -> Connection:
    """Connect to the mesh that a machine or an invitation leads to.

    Raises:
        MeshUsageError: for arguments that don't go together.
    """
    if is_far(arguments.name):
        return join_far(arguments.name, arguments.as_name, arguments.python or "")
    if arguments.python is not None:
        raise MeshUsageError("attach: --python goes with a machine: %mesh attach MACHINE:NAME --python PATH")
    return membership.join(arguments.name, arguments.as_name)


def attached(arguments: Namespace) -> str:
    """Join a mesh by an invitation; return what to type next."""
    if not is_far(arguments.name) and not is_invitation(arguments.name):
        raise MeshUsageError(
            f"attach: {arguments.name} is no invitation; meshes of yours are there as they are: "
            f"%mesh status {arguments.name}; one on another machine: MACHINE:{arguments.name}"
        )
    connection = joined(arguments)
    role = session_of(attach(connection.name, listens=False, observes=True)).role
    return f"mesh {connection.name!r} can be used here as {role.and_article}: %mesh status {connection.name}"
