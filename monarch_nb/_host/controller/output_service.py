"""Writes the output of ranks into the journal, and sends it to its watchers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from monarch_nb._host.controller.registry import Client
from monarch_nb._host.controller.sending import SendsFrames
from monarch_nb._host.controller.watch import Wanted, Watch, Watches
from monarch_nb._journal import record as records
from monarch_nb._journal.record import CLIENT_BITS, CLIENT_MASK, CLIENT_ORIGIN, Record, is_cell
from monarch_nb._protocol.cells import OutputPart, ReadOutput, Taken, Unwatch, WatchOutput
from monarch_nb._protocol.events import GroupsKnown, RanksPrinted
from monarch_nb._protocol.programs import SettleOutput
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._wire import address
from monarch_nb._wire.marks import SETTLED, TEXT, Piece

if TYPE_CHECKING:
    from monarch_nb._host.agent.supervisor import Supervisor
    from monarch_nb._host.controller.clients import ClientService
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.controller.status_publisher import StatusPublisher
    from monarch_nb._host.loop import Loop


class Parts(SendsFrames, Protocol):
    """The parts of a controller that this module uses."""

    clients: ClientService
    journal: JournalService
    loop: Loop
    registry: Registry
    status_publisher: StatusPublisher
    supervisor: Supervisor


class OutputService:
    """The service that writes output into the journal and sends it to watchers. Owned by the loop thread."""

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._store = controller.journal.store
        self.watches = Watches()
        self._own: list[Watch] = []
        """Watches of clients on output of their own calls."""

    # --- incoming records

    @handles(RanksPrinted)
    def on_output(self, event: RanksPrinted, sender: Sender) -> None:
        """Handle output of ranks of another host: keep it, and show it. A host speaks for its own ranks."""
        host = address.host_of(sender.proc)
        for each in event.printed:
            if address.host_of(each.proc) == host:
                self.printed(each.rank, each.proc, Piece(*each.piece))

    def printed(self, rank: int, proc: int, piece: Piece) -> None:
        """Write a piece of a rank's output into the journal, and send it to watchers."""
        if piece.kind == SETTLED:
            self._settled(proc, piece)
            return
        entry = self._controller.registry.procs.get(proc)
        kind = records.TEXT if piece.kind == TEXT else records.DISPLAY
        if piece.kind == TEXT:
            self._controller.status_publisher.printed(proc, piece.data)
        group, number = (entry.group, entry.rank) if entry is not None else ("unknown", rank)
        self.write(kind, piece.stream, group, number, piece.origin, piece.data)

    def _settled(self, proc: int, piece: Piece) -> None:
        """Tell the client that waits for an answer that all output printed before the answer has come."""
        if not piece.data.isdigit():
            return  # not a mark of this package
        data = records.MARK.pack(proc, int(piece.data) & 0xFFFFFFFF)
        record = Record(records.SETTLED, "stdout", 0, 0, piece.origin, 0, 0.0, data)
        packed = records.pack(record)
        self._own = [w for w in self._own if not w.over]
        for watch in self._own:
            watch.mark(record, packed)

    def write(self, kind: int, stream: str, group: str, rank: int, origin: int, data: bytes) -> None:
        """Write a piece into the journal and send it to its watchers."""
        if group not in self._store.groups:
            groups = {**self._store.groups, group: len(self._store.groups)}
            self._controller.clients.tell_listeners(GroupsKnown(groups))
        journal = self._controller.journal
        journal.entries.flush()  # so that a killed controller doesn't leave output of a cell without an entry
        keep = not journal.is_unlogged(origin)
        self.watches.offer(self._store.append(kind, stream, group, rank, origin, data, keep=keep))

    # --- watchers

    def watch_own(self, client: Client) -> None:
        """Make a client a watcher of its own calls' output, and of output without an origin."""
        self._own.append(self._watch(client.proc, 0, _own_output(client.number)))

    def watch_cell(
        self, client: int, ref: int, n: int, position: int | None, until: int | None, *, may_leave_out: bool
    ) -> Watch:
        """Make a client a watcher of a cell's output and end."""

        def wanted(record: Record) -> bool:
            return record.origin == n

        return self._watch(client, ref, wanted, position, until, cell=n, may_leave_out=may_leave_out)

    def _watch(
        self,
        client: int,
        ref: int,
        wanted: Wanted,
        position: int | None = None,
        until: int | None = None,
        cell: int | None = None,
        may_leave_out: bool = False,
    ) -> Watch:
        send = self._controller.send_to_rank
        watch = Watch(
            self._controller.loop, self._store, send, client, ref, wanted, position, until, may_leave_out
        )
        return self.watches.add(watch, cell)

    @handles(SettleOutput)
    def do_settle_output(self, request: SettleOutput, sender: Sender) -> None:
        """Answer once output that ranks of this machine have written before now has been forwarded."""
        self._controller.supervisor.drain()
        watch = self.watches.find(sender.proc, 0)
        if watch is not None:
            watch.flush()

    @handles(Taken)
    def do_taken(self, request: Taken, sender: Sender) -> None:
        """Record how many bytes a client has acknowledged."""
        watch = self.watches.find(sender.proc, request.watch)
        if watch is not None:
            watch.taken(request.bytes)

    @handles(Unwatch)
    def do_unwatch(self, request: Unwatch, sender: Sender) -> None:
        """End a client's watch."""
        self.watches.drop(sender.proc, request.watch)

    @handles(WatchOutput)
    def do_watch_output(self, request: WatchOutput, sender: Sender) -> Later | None:
        """Send a client the output of ranks of a group: from a position, or the last bytes; then later
        output, or not.
        """
        follow, position = request.follow, request.position
        if position is None:
            position = self._store.tail_start(request.tail_bytes)
        is_unknown = request.group is not None and request.group not in self._store.groups
        if not follow and (is_unknown or position >= self._store.end):
            self._controller.reply(sender.proc, sender.ref, [], last=True)
        else:
            self._watch(
                sender.proc, sender.ref, self._chosen(request), position, None if follow else self._store.end
            )
        return LATER

    def _chosen(self, asked: WatchOutput) -> Wanted:
        """Return a filter of the records that a client has asked for."""
        group, ranks, origin, store = asked.group, asked.ranks, asked.origin, self._store
        chosen = None if ranks is None else set(ranks)

        def wanted(record: Record) -> bool:
            return record.kind == records.NOTE or (
                record.kind != records.RESULT
                and (group is None or store.groups.get(group) == record.group)
                and (chosen is None or record.rank in chosen)
                and (origin is None or record.origin == origin)
                and not (asked.actors and is_cell(record.origin))
            )

        return wanted

    @handles(ReadOutput)
    def do_read_output(self, request: ReadOutput, sender: Sender) -> OutputPart:
        """Return a part of the output of ranks of a group: the one before a position, or after one."""
        store = self._store
        group, chosen = store.groups.get(request.group), set(request.ranks)

        def wanted(record: Record) -> bool:
            return (
                record.kind in (records.TEXT, records.NOTE)
                and record.group == group
                and record.rank in chosen
            )

        after = request.after
        if after is None:
            before = request.before
            end = store.end if before is None else min(before, store.end)
            scan, begin = store.scan_back(end, wanted)
        else:
            begin = after
            scan = store.scan(after, wanted)
            end = scan.position
        return OutputPart(scan.data, begin, end, store.start, store.end)


def _own_output(number: int) -> Wanted:
    """Return a filter of the output that a client sees by default: that of its own calls, and output without
    an origin.
    """
    mine = CLIENT_ORIGIN >> CLIENT_BITS | (number & CLIENT_MASK)

    def wanted(record: Record) -> bool:
        return record.kind != records.RESULT and (not record.origin or record.origin >> CLIENT_BITS == mine)

    return wanted
