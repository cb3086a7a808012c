"""Members of a mesh: programs of other users, admitted by a key with a role.

A member dials the port that hosts dial, with a key of its own that an invitation has let in; `_host/relay`
does so on their side. It counts as a host whose index no host has, so messages to its programs find their way
as those to programs of any other machine. What it sends is looked at before anything is made of it: who it
speaks for, what it asks, and which role that needs. An observer's messages go no further than the controller,
which reads types of the protocol and unpickles nothing; only an operator's reach ranks, where they can run
code in any case.

Programs of the mesh's own user on another machine are members, too, with the role owner. Their connection may
be away for minutes, as a laptop is that sleeps: what is sent meanwhile is kept (`_wire/resuming`).

Hosts and ranks pay nothing for this: the link finds out by one look at a connection's key whose it is.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import zmq

from monarch_nb._host.controller.permissions import NOTED_OF_OWNER, UNNOTED, needed, refusal
from monarch_nb._host.controller.sending import Sends
from monarch_nb._host.controller.switching import LAST_WORD_S, SWITCH_S, Outcome
from monarch_nb._host.request import RequestError
from monarch_nb._journal.audit import Audit
from monarch_nb._journal.secrets import logged_source, mask
from monarch_nb._protocol.base import Event, Malformed, decode, encode
from monarch_nb._protocol.cells import RunCell
from monarch_nb._protocol.events import Beat, Leave, MeshEnding
from monarch_nb._protocol.failure import Failure
from monarch_nb._protocol.programs import Goodbye, Hello
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.roles import (
    AuditRow,
    GetAudit,
    KeyRow,
    ListKeys,
    Rekey,
    Rekeyed,
    Role,
    Share,
    Shared,
    Unshare,
)
from monarch_nb._units import duration
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.invitation import Admission, Invitation, InvitationError, Knock
from monarch_nb._wire.keys import KeyPair
from monarch_nb._wire.message import Message
from monarch_nb._wire.pieces import cut, join
from monarch_nb._wire.resuming import AWAY_S, CONFIRM_BYTES, MAX_KEPT_BYTES, NOTE, Resumable

if TYPE_CHECKING:
    from monarch_nb._host.controller.clients import ClientService
    from monarch_nb._host.controller.hosts import HostService
    from monarch_nb._host.controller.invitations import Invitations
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.link import HostLink
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.loop import Loop

UNUSED_S = 3600.0
"""How long an invitation without an expiry of its own waits for its first use."""
MAX_MEMBERS = 256
MAX_PROGRAMS = 64
"""Maximum number of programs of one member."""
SILENT_S = 30.0
"""Time of silence after which a member's connection is ended: its machine sleeps, or is out of reach."""
_TO_RANKS = (wire.CALL, wire.REPLY, wire.RELEASE)
_HELLO, _GOODBYE = Hello.wire_name, Goodbye.wire_name


class Parts(Sends, Protocol):
    """The parts of a controller that this module uses."""

    clients: ClientService
    invitations: Invitations
    hosts: HostService
    journal: JournalService
    loop: Loop
    me: int
    name: str
    registry: Registry

    def handle(self, message: Message) -> None:
        """Handle a message to the controller."""
        ...

    def receive_remote(self, frames: Any) -> None:
        """Forward a message from another machine."""
        ...


@dataclass
class Member:
    """A member: the key by which a user is admitted, and the programs connected with it."""

    key: str
    role: Role
    index: int
    guest: str
    """The invitation's key, which may only knock."""
    addresses: tuple[str, ...]
    ends: float | None
    public: str = ""
    """The member's own public key; empty before the first knock."""
    who: str = ""
    peer: str = ""
    fd: int = -1
    procs: set[int] = field(default_factory=set)
    heard: float = 0.0
    resumable: Resumable | None = None
    """The link to programs of the owner; None: others' end with their connection."""
    num_unconfirmed: int = 0
    stays: bool = False
    """Whether another machine may come by the same invitation, once the first one has left."""
    is_broken: bool = False
    """Whether its connection has ended, a moment ago: it may be back on another one."""
    identity: bytes = b""
    """Of the connection of the process that has come last; `replaced`: of those that it came in place of."""
    replaced: set[bytes] = field(default_factory=set)


class Members:
    """The service that admits programs of other users and checks their requests. Owned by the loop thread."""

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._members: dict[str, Member] = {}
        self._by_index: dict[int, Member] = {}
        self._indices = itertools.count(address.FIRST_MEMBER)
        self.audit = Audit(self._directory, controller.loop.call_shortly)

    # --- keys

    @handles(Share)
    def do_share(self, request: Share, sender: Sender) -> Shared:
        """Make a key for a user, and an invitation to knock with."""
        role = self._shareable(request)
        if len(self._members) >= MAX_MEMBERS:
            raise RequestError(f"{MAX_MEMBERS} keys are out already: %mesh unshare KEY, or --all")
        addresses = self._controller.invitations.listen(request.network, ())
        guest = KeyPair.new()
        ends = None if request.expires_s is None else time.time() + request.expires_s
        member = Member(
            self._free_name(request.key, role), role, next(self._indices), guest.public, addresses, ends,
            resumable=Resumable() if request.own else None, stays=request.own and request.stays,
        )  # fmt: skip
        self._members[member.key] = self._by_index[member.index] = member
        self._link.let_in(guest.public, partial(self._knocks, member))
        self._end_later(member, request.expires_s)
        text = Invitation(
            self._controller.name, wire.VERSION, addresses, self._link.public_key, *guest, 1, role=role.word
        ).to_json()
        return Shared(member.key, text)

    @staticmethod
    def _shareable(request: Share) -> Role:
        if request.role is Role.OWNER and not request.own:
            raise RequestError("the role owner can't be shared: --role observer, or --role operator")
        return request.role

    def _free_name(self, wanted: str, role: Role) -> str:
        if wanted and wanted in self._members:
            raise RequestError(
                f"there is a key {wanted!r} already: name another one, or first %mesh unshare {wanted}"
            )
        numbered = (f"{role.word}-{n}" for n in itertools.count(1))
        return wanted or next(name for name in numbered if name not in self._members)

    def _end_later(self, member: Member, expires_s: float | None) -> None:
        def over() -> None:
            is_over = expires_s is not None or not (member.public or member.stays)
            if is_over and self._members.get(member.key) is member:
                self._end_member(member, "its time was up")
                self._note(member, "time is up")

        self._controller.loop.call_later(UNUSED_S if expires_s is None else expires_s, over)

    @handles(ListKeys)
    def do_list_keys(self, request: ListKeys, sender: Sender) -> list[KeyRow]:
        """Return the members of the mesh besides its owner, by their keys."""
        return [self._row(member) for member in self._members.values()]

    def _row(self, member: Member) -> KeyRow:
        clients = self._controller.registry.clients
        programs = [clients[proc].what for proc in member.procs if proc in clients]
        return KeyRow(member.key, member.role, member.who, member.peer, programs, member.ends)

    @handles(Unshare)
    def do_unshare(self, request: Unshare, sender: Sender) -> list[KeyRow]:
        """Make a key void; programs connected with it are disconnected at once."""
        if request.key and request.key not in self._members:
            known = ", ".join(self._members) or "none"
            raise RequestError(
                f"there is no key {request.key!r}; expected one of those that are out: {known}"
            )
        members = [m for m in self._members.values() if request.key in ("", m.key)]
        rows = [self._row(member) for member in members]
        for member in members:
            self._end_member(member, f"it was revoked by {self._controller.clients.who(sender.proc)}")
        return rows

    @handles(Rekey)
    def do_rekey(self, request: Rekey, sender: Sender) -> Later:
        """Replace all keys; everybody but the owner is disconnected, and hosts come over."""
        rows = [self._row(member) for member in self._members.values()]

        def done(outcome: Outcome) -> None:
            trouble = self._not_come(outcome.left)
            answer = Rekeyed(rows, outcome.moved, outcome.lost, outcome.unjoined)
            self._controller.reply(sender.proc, sender.ref, trouble or answer, error=bool(trouble))

        self._link.rekey(done)
        for member in list(self._members.values()):
            self._end_member(
                member, f"the mesh was given new keys by {self._controller.clients.who(sender.proc)}"
            )
        self._controller.invitations.close_all()
        return LATER

    def _not_come(self, left: Sequence[str]) -> str:
        """Return the sentence about hosts that haven't come over to new keys; empty if all have."""
        if not left:
            return ""
        return (
            f"mesh {self._controller.name!r} has new keys, and nobody can come by earlier ones, but "
            f"these hosts haven't reached its new port within {SWITCH_S:g} s: {', '.join(left)}. For them "
            "alone the old one stays open, until they have come over or are gone. A firewall? Name several "
            'ports that are open in the profile: ports = "29400-29500"'
        )

    def _end_member(self, member: Member, why: str) -> None:
        """Stop handling a member's messages; tell the member why, and end its connection."""
        del self._members[member.key], self._by_index[member.index]
        self._link.keep_out(member.guest)
        if member.public:
            self._link.keep_out(member.public)
        self._dismiss(member, f"lets this program in no more as {member.role.word} ({member.key}): {why}")
        self._forget_programs(member)
        self._controller.loop.call_later(LAST_WORD_S, lambda: self._link.cut(member.index))

    def _dismiss(self, member: Member, how: str) -> None:
        for proc in member.procs:
            self._controller.event(proc, MeshEnding(how))
        self._tell(member, Leave())

    def _tell(self, member: Member, event: Event) -> None:
        to = address.host_proc(member.index)
        if member.resumable is None:
            self._controller.event(to, event)
            return
        frame = wire.pack(
            wire.EVENT, src=self._controller.me, dst=to, name=event.wire_name.encode(), payload=encode(event)
        )
        self._link.send_to_member(member.index, [NOTE, frame])

    def outgoing(self, index: int, frames: Sequence[Any]) -> Sequence[Any] | None:
        """Return the frames of a message to a member's programs that are sent now; None if they're kept until
        it's back.
        """
        member = self._by_index.get(index)
        if member is None or member.resumable is None:
            return cut(frames)
        numbered = member.resumable.send(cut(frames))
        if member.resumable.kept_bytes > MAX_KEPT_BYTES:
            self._end_member(member, f"more than {MAX_KEPT_BYTES >> 20} MiB have come while it was away")
            return None
        return numbered

    def mesh_ends(self) -> None:
        """Tell members to leave: the mesh is about to end, and programs have been told why."""
        for member in self._members.values():
            self._tell(member, Leave())

    # --- connecting and leaving

    def _knocks(self, member: Member, frames: list[zmq.Frame]) -> None:
        """Answer a knock with an invitation, whose content isn't trusted."""
        peer = _peer_of(frames[0])
        try:
            knock = Knock.from_json(bytes(frames[1].buffer) if len(frames) == 2 else b"")
            self._let_in(member, knock, peer)
        except InvitationError as error:
            self._note(member, "attach", refused=f"{peer}: {error}")
            answer = Admission(error=str(error))
        else:
            answer = Admission(member.index, 0, member.key)
        self._link.answer(frames[0], answer.to_json())

    def _let_in(self, member: Member, knock: Knock, peer: str) -> None:
        if knock.wire_version != wire.VERSION:
            raise InvitationError(
                f"this program has another version of monarch_nb (protocol {knock.wire_version}; the mesh "
                f"speaks {wire.VERSION}): install the same one"
            )
        if knock.address not in member.addresses:
            raise InvitationError("this program has come by an address that isn't the invitation's")
        if member.public and member.public != knock.public:
            self._make_room(member)
        elif member.public and member.resumable is not None:
            self._replace(member)
        member.public, member.who, member.peer = knock.public, knock.node, peer
        member.heard = self._controller.loop.clock()
        self._link.let_in(knock.public, partial(self._take_message, member))
        self._note(member, "attach")

    def _replace(self, member: Member) -> None:
        """Forget the process that had a member's key, for another one of the same machine, which knows
        nothing of what that one had sent and taken: it has crashed.

        Raises:
            InvitationError: if it's connected.
        """
        if not member.is_broken:
            self._check_away(member)
        self._note(member, "has come anew")
        member.replaced.add(member.identity)
        self._link.cut(member.index)
        self._forget_programs(member)
        member.resumable = Resumable()

    def _make_room(self, member: Member) -> None:
        """End the stay of a machine that is away, for another one that comes by the same invitation.

        Raises:
            InvitationError: if the invitation is for one user, or that machine is connected.
        """
        if not member.stays or member.resumable is None:
            raise InvitationError(
                f"this invitation is {member.who}'s, who has come by it: ask the mesh's owner for one of "
                f"your own: %mesh share --role {member.role.word}"
            )
        self._check_away(member)
        self._note(member, "was away")
        self._link.cut(member.index)
        self._vacate(member)

    @staticmethod
    def _check_away(member: Member) -> None:
        if member.resumable is not None and member.resumable.is_open:
            raise InvitationError(
                f"{member.who} is connected by this invitation: %mesh detach there, or write another one: "
                "monarch-nb share NAME --own --file FILE"
            )

    @property
    def _link(self) -> HostLink:
        return self._controller.hosts.link

    def of(self, proc: int) -> Member | None:
        """Return the member that a program belongs to; None if it's the owner's."""
        return self._by_index.get(address.host_of(proc)) if proc >> 32 else None

    def connection_breaks(self, index: int) -> None:
        """Record that a member's connection has ended: it may be restored."""
        if (member := self._by_index.get(index)) is not None:
            member.is_broken = True

    def connection_ended(self, index: int) -> None:
        """Drop the programs of a member whose connection has ended and wasn't restored."""
        member = self._by_index.get(index)
        if member is not None and member.resumable is None:
            self._forget_programs(member)
        elif member is not None and member.resumable is not None:
            member.resumable.broken()

    def _forget_programs(self, member: Member) -> None:
        procs, member.procs = member.procs, set()
        for proc in procs:
            self._controller.clients.forget(proc)

    def cut_silent(self) -> None:
        """End connections that have been silent for too long: messages to them would accumulate."""
        now = self._controller.loop.clock()
        for member in list(self._by_index.values()):
            if not member.public or now - member.heard < SILENT_S:
                continue
            if member.resumable is None and member.procs:
                self._link.cut(member.index)
                self._forget_programs(member)
            elif member.resumable is not None:
                self._is_away(member, now - member.heard)

    def _is_away(self, member: Member, silent_s: float) -> None:
        assert member.resumable is not None
        if member.resumable.is_open:
            self._link.cut(member.index)
            member.resumable.broken()
        if silent_s > AWAY_S:
            self._note(member, "was away")
            self._has_left(member, f"it was away for more than {duration(AWAY_S)}")

    def _has_left(self, member: Member, why: str) -> None:
        """End a member of the owner's; by an invitation that stays, the next machine may come."""
        if not member.stays:
            self._end_member(member, why)
            return
        self._tell(member, Leave())
        self._vacate(member)
        self._controller.loop.call_later(LAST_WORD_S, lambda: self._link.cut(member.index))

    def _vacate(self, member: Member) -> None:
        """Make an invitation free for the next machine; programs of the last one are forgotten."""
        self._link.keep_out(member.public)
        self._forget_programs(member)
        member.public, member.who, member.resumable = "", "", Resumable()

    # --- requests

    def _take_message(self, member: Member, frames: list[zmq.Frame]) -> None:
        if member.replaced and (identity := bytes(frames[0].buffer)) in member.replaced:
            self._link.send_by(identity, member.index, Leave())  # it lives, after all
            return
        is_new = self._link.comes_by(member.index, frames[0])
        if is_new:
            member.identity, member.is_broken = bytes(frames[0].buffer), False
        member.heard = self._controller.loop.clock()
        frames = frames[1:]
        try:
            if member.resumable is not None:
                frames = self._numbered(member, member.resumable, frames, is_new=is_new)
                if not frames:
                    return
            parts = join([f.buffer for f in frames])
            message = wire.unpack(bytes(parts[0]) if parts else b"")
            is_own = all(address.host_of(src) == member.index for src in wire.sources(message.frame))
        except (wire.WireError, ValueError, ArithmeticError, LookupError) as error:
            self._note(member, "nonsense", refused=type(error).__name__)
            return
        if not is_own:
            self._note(member, "speak as another", refused="not its own")
        elif message.src == address.host_proc(member.index):
            self._hear_relay(member, message)
        elif message.kind == wire.CONTROL and message.dst == self._controller.me:
            self._ask(member, message)
        elif member.role is Role.OWNER or (member.role >= Role.OPERATOR and _is_for_ranks(message)):
            if message.kind in (wire.CALL, wire.FANOUT):
                self._note(member, "call")
            self._controller.receive_remote(parts)
        else:
            self._refuse_other(member, message)

    def _numbered(
        self, member: Member, link: Resumable, frames: list[zmq.Frame], *, is_new: bool
    ) -> list[zmq.Frame]:
        """Return the frames of a message on a link that is resumed, without its number; none if it has come
        before.

        Raises:
            ValueError: if it has no number.
        """
        if is_new:
            link.broken()
        prefix, rest = bytes(frames[0].buffer) if frames else b"?", frames[1:]
        if prefix == NOTE:
            return rest
        if not link.takes(prefix):
            return []
        member.num_unconfirmed += sum(len(f.buffer) for f in rest)
        if member.num_unconfirmed > CONFIRM_BYTES:
            self._confirm(member)
        return rest

    def _confirm(self, member: Member) -> None:
        member.num_unconfirmed = 0
        self._tell(member, Beat(0 if member.resumable is None else member.resumable.num_taken))

    def _hear_relay(self, member: Member, message: Message) -> None:
        if message.kind != wire.EVENT:
            return
        if message.name == Beat.wire_name.encode():
            self._confirm(member)
            if member.resumable is not None:
                with suppress(Malformed):
                    self._resume(member, member.resumable, decode(Beat, message.payload).taken)
        elif message.name == Leave.wire_name.encode() and member.resumable is not None:
            self._has_left(member, "it has left")

    def _resume(self, member: Member, link: Resumable, num_taken: int) -> None:
        """Send what a relay that has come back lacks; forget what it has."""
        for frames in link.resumed(num_taken):
            self._link.send_to_member(member.index, frames)

    def _ask(self, member: Member, message: Message) -> None:
        """Execute a request, if the member's role permits it."""
        name = message.name.decode("utf-8", "replace")
        trouble = self._why_not(member, name, message.src)
        if trouble:
            self._note(member, name, detail=self._detail(name, message), refused=trouble)
            self._controller.reply(message.src, message.ref, trouble, error=True)
            return
        if name == _HELLO:
            member.procs.add(message.src)
        elif name == _GOODBYE:
            member.procs.discard(message.src)
        if name not in UNNOTED:
            self._note(member, name, detail=self._detail(name, message))
        self._controller.handle(message)

    def _why_not(self, member: Member, name: str, src: int) -> str:
        if member.role < needed(name):
            return refusal(name, member.role, self._controller.name)
        if name == _HELLO:
            if not address.is_client(src):
                return "this is no program's number"
            if len(member.procs) >= MAX_PROGRAMS:
                return f"{MAX_PROGRAMS} programs have come by {member.key}: %mesh detach in one of them"
        elif src not in member.procs:
            return "this program isn't known in the mesh any more: %mesh attach"
        return ""

    def _refuse_other(self, member: Member, message: Message) -> None:
        """Refuse a message that isn't a request to the controller: usually a call, which is answered as
        one.
        """
        trouble = (
            refusal("call", member.role, self._controller.name, Role.OPERATOR)
            if member.role < Role.OPERATOR
            else "only the mesh's own processes may send that"
        )
        self._note(member, _KINDS.get(message.kind, "message"), refused=trouble)
        inner = wire.unpack(wire.unpack_fanout(message)[1]) if message.kind == wire.FANOUT else message
        if inner.kind == wire.CALL:
            failure = Failure(type="PermissionError", message=trouble, when=time.time())
            self._controller.reply(message.src, inner.ref, failure, error=True)
        elif inner.kind == wire.CONTROL:
            self._controller.reply(message.src, inner.ref, trouble, error=True)

    # --- the audit

    def note_own(self, message: Message) -> None:
        """Enter a request of one of the owner's programs into the audit."""
        name = message.name.decode("utf-8", "replace")
        if name in NOTED_OF_OWNER and address.is_client(message.src) and not message.src >> 32:
            who = self._controller.clients.who(message.src)
            self.audit.note("", Role.OWNER, who, name, detail=self._detail(name, message))

    def _note(self, member: Member, what: str, *, detail: str = "", refused: str = "") -> None:
        self.audit.note(
            member.key, member.role, member.who or member.peer, what, detail=detail, refused=refused
        )

    def _directory(self) -> str:
        journal = self._controller.journal
        return "" if journal.is_off else journal.store.directory

    def _detail(self, name: str, message: Message) -> str:
        """Return the detail of a request for the audit; empty while cells aren't logged."""
        return "" if self._controller.journal.is_off else _detail(name, message)

    @handles(GetAudit)
    def do_get_audit(self, request: GetAudit, sender: Sender) -> list[AuditRow]:
        """Return the audit: who requested what."""
        return self.audit.last(request.limit)

    def describe(self, member: Member, what: str) -> str:
        """Return the name by which a member's program is known.

        >>> ada = Member("observer-1", Role.OBSERVER, 1, "", (), None, who="ada@lab")
        >>> Members.describe(None, ada, "kernel")
        'kernel of ada@lab (observer-1)'
        """
        return f"{what} of {member.who} ({member.key})"


_KINDS = {
    wire.CALL: "call",
    wire.FANOUT: "call",
    wire.EVENT: "event",
    wire.OUTPUT: "output",
    wire.REPLY: "reply",
}


def _is_for_ranks(message: Message) -> bool:
    """Say whether a message is one that programs send to ranks: a call, an answer, the end of a loan."""
    if message.kind != wire.FANOUT:
        return message.kind in _TO_RANKS and address.local_of(message.dst) != 0
    return wire.unpack(wire.unpack_fanout(message)[1]).kind == wire.CALL


def _detail(name: str, message: Message) -> str:
    """Return the detail of a request for the audit: the first line of a cell, unless cells aren't kept."""
    if name != RunCell.wire_name:
        return ""
    try:
        source = logged_source(decode(RunCell, message.payload).source)
    except Malformed:
        return ""
    return next(iter(mask(source.encode()).decode().strip().splitlines()), "")


def _peer_of(frame: zmq.Frame) -> str:
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
