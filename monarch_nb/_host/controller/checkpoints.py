"""Synchronises ranks that save together, and keeps track of complete checkpoints.

Members give a value for each phase and get all of them back; when one of them dies, the others hear at once.
A checkpoint is written beside its place and gets its name when all have written: what has a name is whole.
When one can't write, the others hear why, and what was written goes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from monarch_nb._host.agent.process import PREEMPT_S
from monarch_nb._host.controller.exits import Exited
from monarch_nb._host.controller.sending import Sends
from monarch_nb._host.controller.spawn_specs import SpawnSpec
from monarch_nb._host.controller.workflow import run_workflow
from monarch_nb._journal.disk import why
from monarch_nb._protocol.events import CheckpointEpoch, HostPreempted, Leave, Notice
from monarch_nb._protocol.healing import CheckpointFailed, CheckpointGather, Gathered
from monarch_nb._protocol.journal import JournalEntry
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.states import CheckpointPhase, EntryKind
from monarch_nb._shape import name_ranks
from monarch_nb._wire import address

if TYPE_CHECKING:
    from monarch_nb._host.controller.clients import ClientService
    from monarch_nb._host.controller.healing import Healing
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.controller.time_limit import TimeLimit
    from monarch_nb._host.loop import Loop

GATHER_S = 180.0

Key = tuple[int, int, str]
"""Actor, version, phase."""


class Parts(Sends, Protocol):
    """The parts of a controller that this module uses."""

    clients: ClientService
    healing: Healing
    journal: JournalService
    loop: Loop
    registry: Registry
    time_limit: TimeLimit


@dataclass
class _Gathering:
    members: dict[int, CheckpointGather] = field(default_factory=dict)
    asking: list[tuple[int, int]] = field(default_factory=list)

    @property
    def first(self) -> CheckpointGather:
        """The message of the first member that has arrived."""
        return self.members[min(self.members)]


@dataclass
class _Failure:
    """A checkpoint that can't be completed: the reason, and the members that haven't been told yet."""

    reason: str
    left: set[int]


@dataclass
class Saved:
    """A checkpoint on disk: the number of calls before it, and its path."""

    version: int
    path: str


_TAKEN = "this host is about to be taken away: states are saved"


class CheckpointService:
    """The service that synchronises members saving a checkpoint together, and records which checkpoints are
    complete. Owned by the loop thread.
    """

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._gatherings: dict[Key, _Gathering] = {}
        self._saved: dict[int, list[Saved]] = {}
        self._failures: dict[tuple[int, int], _Failure] = {}
        """Failures by actor and version."""
        self._writing: dict[int, set[str]] = {}
        """Directories that are being written, by actor."""
        self._in_trouble: set[int] = set()
        """Actors whose last checkpoint couldn't be written, as programs were told."""
        self._epochs: dict[int, int] = {}
        """How often members of an actor were lost, or it was restored: saves that began before aren't
        completed.
        """

    def newest(self, actor_id: int) -> Saved | None:
        """Return an actor's newest complete checkpoint."""
        found = self._saved.get(actor_id)
        return found[-1] if found else None

    def epoch(self, actor_id: int) -> int:
        """Return the epoch, a number that members must agree on to save together."""
        return self._epochs.get(actor_id, 0)

    def tell_epoch(self, actor_id: int, procs: Iterable[int]) -> None:
        """Send the epoch to all members, so that they can save together again."""
        for proc in procs:
            self._controller.event(proc, CheckpointEpoch(actor_id, self.epoch(actor_id)))

    @handles(CheckpointGather)
    def do_checkpoint_gather(self, request: CheckpointGather, sender: Sender) -> Gathered | Later:
        """Record that a rank that saves has reached a phase; answer once all have.

        Raises:
            ValueError: if not all members live.
        """
        controller = self._controller
        spec = controller.healing.spawn_specs.find(request.actor_id)
        dead = [] if spec is None else [p for p in spec.procs if controller.registry.procs[p].end is not None]
        if spec is None or dead:
            raise ValueError(f"{_ranks(controller, dead)} lost" if dead else "the actor was stopped")
        if request.epoch != self.epoch(request.actor_id):
            raise ValueError("a member was lost since this was begun")
        failure = self._failures.get((request.actor_id, request.version))
        if failure is not None and request.slot in failure.left:
            raise ValueError(failure.reason)
        self._leave_behind(spec, request)
        key = (request.actor_id, request.version, request.phase)
        gathering = self._gatherings.get(key)
        if gathering is None:
            gathering = self._gatherings[key] = _Gathering()
            controller.loop.call_later(GATHER_S, lambda: self._give_up(key, gathering))
        gathering.members[request.slot] = request
        gathering.asking.append((sender.proc, sender.ref))
        if len(gathering.members) == request.size:
            try:
                self._complete(key, gathering, spec.name)
            except OSError as error:
                self._refuse(key, why(error, self._base(gathering, key, spec.name)))
        return LATER

    @handles(CheckpointFailed)
    def do_checkpoint_failed(self, request: CheckpointFailed, sender: Sender) -> str:
        """Record that a rank has given up saving: it can't write, or was told that another one can't."""
        actor_id, version, slot, reason = request.actor_id, request.version, request.slot, request.reason
        failure = None
        if request.epoch == self.epoch(actor_id):
            failure = self._failures.get((actor_id, version))
            if failure is None and reason:
                failure = self._failures[actor_id, version] = self._fail(request)
            if failure is not None:
                failure.left.discard(slot)
                if not failure.left:
                    del self._failures[actor_id, version]
        if request.path:
            shutil.rmtree(request.path, ignore_errors=True)
        return failure.reason if failure is not None else ""

    def _fail(self, failed: CheckpointFailed) -> _Failure:
        """Tell the members that wait for a rank that it can't write; and programs, unless one has requested
        this checkpoint.
        """
        actor_id, version = failed.actor_id, failed.version
        spec = self._controller.healing.spawn_specs.find(actor_id)
        who = (
            _ranks(self._controller, [spec.procs[failed.slot]])
            if spec is not None
            else f"member {failed.slot}"
        )
        failure = _Failure(f"{who}: {failed.reason}", set(range(failed.size)))
        for key in [k for k in self._gatherings if k[:2] == (actor_id, version)]:
            self._refuse(key, failure.reason)
        if not failed.asked and actor_id not in self._in_trouble:
            self._in_trouble.add(actor_id)
            self._tell_trouble(actor_id, version, failure.reason)
        return failure

    def _tell_trouble(self, actor_id: int, version: int, reason: str) -> None:
        spec, last = self._controller.healing.spawn_specs.find(actor_id), self.newest(actor_id)
        name = spec.name if spec is not None else f"{actor_id:x}"
        good = f"the last good one is {last.path}" if last is not None else "there is none yet"
        what = (
            f"the checkpoint of actor {name!r} after {version} calls could not be written: {reason}. "
            f"Calls go on; {good}"
        )
        self._controller.clients.tell_listeners(Notice("", what))

    def _leave_behind(self, spec: SpawnSpec, member: CheckpointGather) -> None:
        """Refuse the gatherings of an actor that a member will never reach, because it has begun another
        checkpoint. Members save one version after the other, and those past this one don't return to it.

        Raises:
            ValueError: if others have gone on to a later version.
        """
        slot, version, phase = member.slot, member.version, member.phase
        others = {
            k: g for k, g in self._gatherings.items() if k[0] == spec.actor_id and slot not in g.members
        }
        later = next((k for k in others if k[1] > version), None)
        if later is not None:
            ahead = [spec.procs[s] for s in others[later].members]
            raise ValueError(
                f"{_ranks(self._controller, ahead)} went on to the checkpoint after {later[1]} calls"
            )
        for key in others:
            if key[1:] != (version, phase):
                self._refuse(
                    key,
                    (
                        f"{_ranks(self._controller, [spec.procs[slot]])} went on to the checkpoint after "
                        f"{version} calls"
                    ),
                )

    def _base(self, gathering: _Gathering, key: Key, name: str) -> str:
        """Return the directory of an actor's checkpoints."""
        first = gathering.first
        folder = first.directory or os.path.join(self._controller.journal.store.directory, "checkpoints")
        return os.path.join(folder, f"{name}-{key[0] & 0xFFFF:04x}")

    def _complete(self, key: Key, gathering: _Gathering, name: str) -> None:
        """Do the work of a phase that all members have reached, and answer them.

        Raises:
            OSError: if the disk can't be written to; they're still there then.
        """
        actor_id, version, phase = key
        first, base = gathering.first, self._base(gathering, key, name)
        # The epoch is part of the name: members from before a loss may still be writing to the old one.
        writing, final = (
            os.path.join(base, f".step-{version}.{first.epoch}.writing"),
            os.path.join(base, f"step-{version}"),
        )
        path = writing
        if phase == CheckpointPhase.BEGIN:
            os.makedirs(base, mode=0o700, exist_ok=True)
            shutil.rmtree(writing, ignore_errors=True)
            os.mkdir(writing, 0o700)
            self._writing.setdefault(actor_id, set()).add(writing)
        elif phase == CheckpointPhase.DONE:
            shutil.rmtree(final, ignore_errors=True)
            os.rename(writing, final)
            self._writing[actor_id].discard(writing)
            self._in_trouble.discard(actor_id)
            self._enter(actor_id, Saved(version, final), first.keep)
            path = final
        del self._gatherings[key]
        values = (
            []
            if phase in tuple(CheckpointPhase)
            else [gathering.members[s].value for s in sorted(gathering.members)]
        )
        for src, ref in gathering.asking:
            self._controller.reply(src, ref, Gathered(path, values))

    def _enter(self, actor_id: int, saved: Saved, keep: int) -> None:
        kept = [
            s for s in self._saved.get(actor_id, ()) if s.version < saved.version
        ]  # later checkpoints were taken back
        kept.append(saved)
        for old in kept[: -max(1, keep)]:
            shutil.rmtree(old.path, ignore_errors=True)
        self._saved[actor_id] = kept[-max(1, keep) :]

    def _give_up(self, key: Key, gathering: _Gathering) -> None:
        if self._gatherings.get(key) is gathering:
            missing = gathering.first.size - len(gathering.members)
            self._refuse(key, f"{missing} ranks did not save after {key[1]} calls within {GATHER_S:g} s")

    def _refuse(self, key: Key, text: str) -> None:
        for src, ref in self._gatherings.pop(key).asking:
            self._controller.reply(src, ref, text, error=True)

    def rank_exited(self, exited: Exited) -> None:
        """Drop the unfinished checkpoints in which a dead rank took part."""
        entry = exited.entry
        if entry is None:
            return
        for spec in self._controller.healing.spawn_specs.on({entry.proc}):
            self._drop_unfinished(spec.actor_id)
        for key in list(self._gatherings):
            found = self._controller.healing.spawn_specs.find(key[0])
            if found is None or entry.proc in found.procs:
                self._refuse(key, f"rank {entry.rank} was lost")

    def begin_anew(self, actor_id: int, version: int) -> None:
        """Drop the saves in progress of an actor that is restored to a version, and its later checkpoints."""
        for key in [k for k in self._gatherings if k[0] == actor_id]:
            self._refuse(key, "the actor has gone back to an earlier checkpoint")
        self._drop_unfinished(actor_id)
        for later in [s for s in self._saved.get(actor_id, ()) if s.version > version]:
            self._saved[actor_id].remove(later)
            with suppress(OSError):
                shutil.rmtree(later.path)

    def _drop_unfinished(self, actor_id: int) -> None:
        """Drop an actor's unfinished checkpoints; members that still write are told, and their files are
        removed then (`do_checkpoint_failed`).
        """
        self._epochs[actor_id] = self.epoch(actor_id) + 1
        for path in self._writing.pop(actor_id, ()):
            shutil.rmtree(path, ignore_errors=True)
        for key in [k for k in self._failures if k[0] == actor_id]:
            del self._failures[key]

    # --- a host that is about to be taken away

    @handles(HostPreempted)
    def on_preempted(self, event: HostPreempted, sender: Sender) -> None:
        """Handle the coming loss of another host: have its ranks' actors saved, then let the host leave."""
        host = self._controller.registry.hosts[address.host_of(sender.proc)]
        of_job = f" with {self._controller.time_limit.describe_end(event.job)}" if event.job else ""
        host.taken = f"was ended{of_job}: host {host.hostname} was told to end"
        theirs = {p.proc for p in self._controller.registry.alive_on(address.host_of(sender.proc))}
        self.save_then(theirs, lambda: self._controller.event(sender.proc, Leave()))

    def save_then(self, procs: set[int], go_on: Callable[[], None], why: str = _TAKEN) -> None:
        """Have the actors of some ranks save their states, as far as the time permits; then call back."""
        controller = self._controller
        deadline_s = PREEMPT_S
        specs = [r for r in controller.healing.spawn_specs.on(procs) if r.checkpointed]
        left = [True]

        def once(_outcome: object = None) -> None:
            if left:
                left.clear()
                go_on()

        if specs:
            controller.journal.note(0, JournalEntry(EntryKind.NOTE, text=why))
            controller.loop.call_later(deadline_s, once)
        run_workflow(controller.healing.save(specs, deadline_s), once)


def _ranks(controller: Parts, procs: list[int]) -> str:
    return name_ranks(controller.registry.procs[p].rank for p in procs)
