"""Heals a mesh that has lost ranks: releases their peers from collectives, notifies owners, and restores
ranks and actors.

A rank that is made again keeps its proc id, so every handle on it works again; what it held is made again
from the spawn specs of its actors and what they have saved. One heal of a group runs at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, assert_never

from msgspec.structs import replace

from monarch_nb._host.controller import reshaping
from monarch_nb._host.controller.exits import Exited
from monarch_nb._host.controller.groups import remake_groups
from monarch_nb._host.controller.heal_states import TOGETHER_S, Losses, Turns
from monarch_nb._host.controller.heal_steps import (
    START_S,
    AwaitTaken,
    Effect,
    FindBusy,
    MakeActors,
    RemakeGroup,
    ReplaceHost,
    RestartRanks,
    RunDefinitions,
    Settle,
    StartRanks,
    TellHealed,
    common_version,
    heal_steps,
)
from monarch_nb._host.controller.registry import Group, Policy, Waiting
from monarch_nb._host.controller.reshaping import Reshaping
from monarch_nb._host.controller.spawn_specs import SpawnSpec, SpawnSpecs
from monarch_nb._host.controller.workflow import Workflow, carry_out, run_workflow
from monarch_nb._protocol import calls
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.events import ActorsHealed, Notice
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.failure import ActorFailed, Failure
from monarch_nb._protocol.healing import ActorStopped, Heal, Report, Resize, Respawn, Resume, SetPolicy
from monarch_nb._protocol.journal import JournalEntry
from monarch_nb._protocol.questions import AbortCollectives, CheckpointVersions, LivingActors, WhereNow
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.states import CellStatus, CheckpointKind, EntryKind, OnFailure
from monarch_nb._shape import format_ranks, name_ranks
from monarch_nb._units import size_text
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb.exceptions import describe_end

if TYPE_CHECKING:
    from monarch_nb._host.agent.supervisor import Supervisor
    from monarch_nb._host.controller.asking import Asking
    from monarch_nb._host.controller.checkpoints import CheckpointService
    from monarch_nb._host.controller.clients import ClientService
    from monarch_nb._host.controller.status_publisher import StatusPublisher

Done = Callable[[Report], None]

TAKEN_S = 60.0
"""How long a heal waits for hosts that are being taken away."""
CONSTRUCT_S = 120.0
_ABORT_S = 2.0
_ASK_S = 5.0
_BUSY_S = 1.0
_RETRY = "end that, and heal again: %mesh interrupt, %mesh heal"

_SILENT = Failure("RankTimeout", f"no answer within {CONSTRUCT_S:g} s")


class Parts(reshaping.Parts, Protocol):
    """The parts of a controller that this module uses."""

    asking: Asking
    checkpoints: CheckpointService
    clients: ClientService
    status_publisher: StatusPublisher
    supervisor: Supervisor


class _Turn(NamedTuple):
    """A heal or a resize of a group under way, requested by `client` (0: nobody).

    Attributes:
        did: what has been done when it's over, in a word.
    """

    group: str
    did: str
    begin: Callable[[], Workflow[Report]]
    done: Done
    client: int


class Healing:
    """The service that handles losses and heals of a mesh. Owned by the loop thread."""

    def __init__(self, controller: Parts, specs: SpawnSpecs) -> None:
        self._controller = controller
        self.spawn_specs = specs
        self._turns: Turns[_Turn] = Turns()
        self._losses = Losses()

    # --- a loss

    def rank_exited(self, exited: Exited) -> None:
        """Handle the loss of a rank: end the collectives that wait for it, ask the owners of its actors,
        follow the group's policy.
        """
        if not exited.is_loss:
            return
        end = exited.end
        self._release_peers(end)
        for spec in self.spawn_specs.on({end.proc}):
            self._tell_owner(spec, end)
        self._follow_policy(end)

    def _release_peers(self, end: RankExit) -> None:
        """Abort the collectives of the dead rank's groups: those over the whole mesh; other groups aren't
        known here.
        """
        peers = {p.rank: p.proc for p in self._controller.registry.alive() if p.group == end.group}
        size = len(self._controller.registry.groups[end.group].procs)
        self._controller.asking.ask(peers, AbortCollectives(size), lambda _answers: None, _ABORT_S)

    def _tell_owner(self, spec: SpawnSpec, end: RankExit) -> None:
        """Ask the actor that has spawned a lost one; clients are told of each end anyway."""
        proc, actor = self._living_owner(spec)
        if not actor:
            return
        failure = Failure(
            "lost",
            describe_end(end),
            when=time.time(),
            dead=True,
            rank=end.rank,
            host=end.host,
            pid=end.pid,
            actor=spec.name,
            end=end,
        )
        payload = encode(ActorFailed(spec.actor_id, failure))
        frame = wire.pack(
            wire.CALL, src=address.CONTROLLER, dst=proc, target=actor, name=calls.SUPERVISE, payload=payload
        )
        self._controller.send_to_rank(proc, frame)

    def _living_owner(self, spec: SpawnSpec) -> tuple[int, int]:
        """Return the nearest living owner; (0, 0) if that isn't an actor."""
        owner = spec.creator
        while owner[1]:
            if self._controller.registry.lives(owner[0]):
                return owner
            above = self.spawn_specs.find(owner[1])
            owner = above.creator if above is not None else (0, 0)
        return 0, 0

    # --- requests

    @handles(ActorStopped)
    def do_actor_stopped(self, request: ActorStopped, sender: Sender) -> None:
        """Forget the specifications of actors that were stopped."""
        self.spawn_specs.stopped(request.actor_id, request.procs)

    @handles(SetPolicy)
    def do_policy(self, request: SetPolicy, sender: Sender) -> None:
        """Set the policy for the death of a rank of a group."""
        group = self._controller.registry.group(request.group)
        group.policy = Policy(request.on_failure, request.max_restarts, request.window_s)
        self._controller.status_publisher.touch()

    @handles(Heal)
    def do_heal(self, request: Heal, sender: Sender) -> Report | Later:
        """Repair the losses of a group; answers with a report. Ends on this machine that nobody knows of yet
        count.
        """
        self._controller.supervisor.handle_ends()
        self.heal(request, partial(self._controller.reply, sender.proc, sender.ref), sender.proc)
        return LATER

    @handles(Resize)
    def do_resize(self, request: Resize, sender: Sender) -> Report | Later:
        """Change the sizes of a group; answers with a report."""
        self.resize(request, partial(self._controller.reply, sender.proc, sender.ref), sender.proc)
        return LATER

    # --- turns

    def heal(self, asked: Heal, done: Done, client: int = 0) -> None:
        """Repair the losses of a group; `done` is called with the report. `client` has requested it."""
        self._enqueue(_Turn(asked.group, "healed", lambda: self._heal(asked), done, client))

    def resize(self, asked: Resize, done: Done, client: int = 0) -> None:
        """Change the sizes of a group; without sizes: leave out lost parts."""
        group, shapes = self._controller.registry.group(asked.group), Reshaping(self._controller, client)

        def begin() -> Workflow[Report]:
            if asked.leave:
                return shapes.leave(group, asked.leave)
            return (
                shapes.shrink(group)
                if asked.sizes is None
                else shapes.resize(group, asked.sizes, asked.joined, force=asked.force)
            )

        self._enqueue(_Turn(group.name, "resized", begin, done, client))

    def _enqueue(self, turn: _Turn) -> None:
        """Run a workflow after those of its group before it."""
        if self._turns.add(turn.group, turn):
            self._begin_turn(turn)

    def is_busy(self, group: str) -> bool:
        """Say whether a group is being healed or resized."""
        return self._turns.is_busy(group)

    def _begin_turn(self, turn: _Turn) -> None:
        self._controller.status_publisher.touch()
        run_workflow(turn.begin(), partial(self._finished, turn))

    def _finished(self, turn: _Turn, outcome: Report | Exception) -> None:
        """Report the result, and begin the next workflow even if reporting fails."""
        following = self._turns.end_turn(turn.group)
        try:
            self._controller.status_publisher.touch()
            report = outcome if isinstance(outcome, Report) else Report(problems=[_problem(outcome)])
            self._note(turn, report)
            turn.done(report)
        finally:
            if following is not None:
                self._begin_turn(following)

    def _note(self, turn: _Turn, report: Report) -> None:
        if report.ranks or report.actors or report.problems:
            text = f"healed {name_ranks(report.ranks)}" if report.ranks else turn.did
            if report.problems and not report.ranks:
                text = f"not {turn.did}: {report.problems[0]}"
            status = CellStatus.ERROR if report.problems else CellStatus.OK
            entry = JournalEntry(
                EntryKind.HEAL, text=text, group=turn.group, ranks=format_ranks(report.ranks), status=status,
                report=report,
            )  # fmt: skip
            self._controller.journal.note(turn.client, entry)

    # --- automatic healing

    def _follow_policy(self, end: RankExit) -> None:
        """Follow the policy after the death of a rank of this group."""
        group = self._controller.registry.groups.get(end.group)
        if group is None:
            return
        planned = self._losses.lost(group.name, group.policy, time.monotonic())
        if isinstance(planned, str):
            self._tell(group.name, planned)
        elif planned is not None:
            self._controller.loop.call_later(planned, partial(self._act, group))

    def _act(self, group: Group) -> None:
        is_running = any(self._controller.cells.is_busy(p) for p in group.procs)
        if not self._losses.due(group.name, group.policy, is_running=is_running):
            self._controller.loop.call_later(TOGETHER_S, partial(self._act, group))
            return
        done = partial(self._tell, group.name)
        if group.policy.on_failure == OnFailure.HEAL:
            self.heal(Heal(group.name), done)
        elif group.policy.on_failure == OnFailure.SHRINK:  # its policy may have changed meanwhile
            self.resize(Resize(group.name), done)

    def _tell(self, group: str, what: Report | str) -> None:
        """Have programs show the action taken on a loss."""
        self._controller.clients.tell_listeners(Notice(group, what))

    # --- healing

    def _heal(self, request: Heal) -> Workflow[Report]:
        began = time.monotonic()
        steps = heal_steps(self._controller.registry, request, self._controller.cells.is_stuck)
        report = yield from carry_out(steps, self._perform)
        report.seconds = time.monotonic() - began
        return report

    def _perform(self, effect: Effect) -> Workflow[Any]:
        """Execute one step of a heal; return its result."""
        controller = self._controller
        match effect:
            case AwaitTaken(group):
                yield partial(self._when_taken, group)
            case RestartRanks(procs):
                controller.ranks.restart(list(procs))
            case StartRanks(procs):
                for proc in procs:
                    controller.ranks.start_again(proc)
            case ReplaceHost(index):
                return controller.hosts.link.replace(controller.registry.hosts[index])
            case Settle(who):
                yield partial(self.when_settled, set(who))
            case RemakeGroup(ranks, if_torn):
                return (yield from remake_groups(controller, dict(ranks), if_torn=if_torn, retry=_RETRY))
            case RunDefinitions(group, ranks, report):
                yield from controller.definitions.run(controller.registry.groups[group], ranks, report)
            case MakeActors(actors_on, report):
                yield from self.make_actors(set(actors_on), report)
            case FindBusy(ranks):
                found = yield partial(controller.asking.ask, dict(ranks), WhereNow(), timeout_s=_BUSY_S)
                return sorted(rank for rank, where in found.items() if where.in_function)
            case TellHealed(group, actor_ids):
                self._tell_all(group, actor_ids)
            case _:
                assert_never(effect)
        return None

    def _when_taken(self, group: str, go_on: Callable[[Any], None]) -> None:
        """Wait for hosts that are being taken away: their ranks save their states, and then are lost."""
        registry, limit = self._controller.registry, time.monotonic() + TAKEN_S

        def look() -> None:
            taken = {h.index for h in registry.hosts.values() if h.taken}
            leaving = [p for p in registry.alive() if p.group == group and address.host_of(p.proc) in taken]
            if leaving and time.monotonic() < limit:
                self._controller.loop.call_later(0.05, look)
            else:
                go_on(None)

        look()

    def when_settled(self, who: set[int], go_on: Callable[[Any], None]) -> None:
        """Call back once ranks (or hosts) are up or have ended, or the time is up."""
        controller = self._controller
        if not who:
            go_on(None)
            return
        waiting = Waiting(0, 0, set(who), lambda: go_on(None))
        controller.registry.waiting.append(waiting)

        def give_up() -> None:
            if waiting in controller.registry.waiting:
                controller.registry.waiting.remove(waiting)
                go_on(None)

        controller.loop.call_later(START_S, give_up)

    # --- actors

    def save(self, specs: list[SpawnSpec], timeout_s: float) -> Workflow[None]:
        """Have the actors of some spawns save their states now."""
        for spec in specs:
            slots = self.spawn_specs.living_slots(spec, {p.proc for p in self._controller.registry.alive()})
            yield partial(
                self._controller.asking.have_done,
                slots,
                calls.SAVE.decode(),
                None,
                timeout_s=timeout_s,
                target=spec.actor_id,
                context=spec.context,
            )

    def make_actors(
        self, procs: set[int], report: Report, anew: frozenset[int] = frozenset()
    ) -> Workflow[None]:
        """Create again the actors that belong on some procs and are missing or have failed there; `anew`: in
        any case.
        """
        specs = self.spawn_specs.on(procs)
        if not specs:
            return
        asked = dict(enumerate(sorted(procs)))
        answers = yield partial(self._controller.asking.ask, asked, LivingActors(), timeout_s=_ASK_S)
        living = {asked[i]: set(found) for i, found in answers.items()}
        for spec in specs:
            slots = self.spawn_specs.living_slots(spec, procs)
            missing = {s: p for s, p in slots.items() if p in living and spec.actor_id not in living[p]}
            if not missing and spec.actor_id not in anew:
                continue
            resume = None
            if spec.checkpointed and (spec.checkpointed != CheckpointKind.OWN or not anew):
                resume = yield from self._choose_checkpoint(spec, slots, missing, report)
            made = slots if resume is not None else missing
            if made:
                yield from self._make_actor(spec, made, resume, report)
            if spec.checkpointed:
                self._controller.checkpoints.tell_epoch(spec.actor_id, slots.values())

    def _choose_checkpoint(
        self, spec: SpawnSpec, slots: dict[int, int], missing: dict[int, int], report: Report
    ) -> Workflow[Resume | None]:
        """Return the checkpoint from which all actors of a spawn can be restored; None if nothing was
        saved.
        """
        service, survivors = (
            self._controller.checkpoints,
            {s: p for s, p in slots.items() if s not in missing},
        )
        saved = service.newest(spec.actor_id)
        resume = None if saved is None else Resume(0, saved.version, path=saved.path)
        where = "disk"
        if spec.checkpointed == CheckpointKind.REPLICATED and survivors:
            answers = yield partial(
                self._controller.asking.ask, survivors, CheckpointVersions(), timeout_s=_ASK_S
            )
            kept = [set(found.get(spec.actor_id, ())) for found in answers.values()]
            common = common_version(kept, len(survivors), None if saved is None else saved.version)
            if common is not None:
                resume = Resume(0, common, peer=next(iter(survivors.values())))
                where = "the others' memory"
        if resume is None or resume.version is None:
            report.messages.append(f"actor {spec.name!r} begins anew on what was lost: it had no checkpoint")
            return None
        service.begin_anew(spec.actor_id, resume.version)
        report.messages.append(
            f"actor {spec.name!r} goes on from its state after {resume.version} calls (from {where})"
        )
        return replace(resume, epoch=service.epoch(spec.actor_id))

    def _make_actor(
        self, spec: SpawnSpec, slots: dict[int, int], resume: Resume | None, report: Report
    ) -> Workflow[None]:
        ranks = [self._controller.registry.procs[p].rank for p in slots.values()]
        if not spec.kept:
            report.problems.append(
                f"actor {spec.name!r} was not made again on {name_ranks(ranks)}: its "
                f"{size_text(spec.size_bytes)} of arguments are not kept; spawn it anew"
            )
            return
        try:
            data = self.spawn_specs.read(spec)
        except OSError as error:
            report.problems.append(
                f"actor {spec.name!r} was not made again on {name_ranks(ranks)}: {error}; spawn it anew"
            )
            return
        if resume is None and spec.checkpointed:
            resume = Resume(self._controller.checkpoints.epoch(spec.actor_id))
        answers = yield partial(
            self._controller.asking.have_done,
            slots,
            calls.RESPAWN.decode(),
            Respawn(data, resume),
            timeout_s=CONSTRUCT_S,
            keeps_refusals=True,
            target=spec.actor_id,
            context=spec.context,
        )
        made = [s for s in slots if not isinstance(answers.get(s, _SILENT), Failure)]
        report.actors[spec.name] = sorted(self._controller.registry.procs[slots[s]].rank for s in made)
        report.actor_ids.append(spec.actor_id)
        for slot in [s for s in slots if s not in made]:
            refusal = answers.get(slot, _SILENT)
            rank = self._controller.registry.procs[slots[slot]].rank
            report.problems.append(
                f"actor {spec.name!r} was not made again on rank {rank}: {refusal.type}: {refusal.message}"
            )

    def _tell_all(self, group: str, actor_ids: tuple[int, ...]) -> None:
        """Make handles on healed actors usable in all programs."""
        for to in self._controller.everybody():
            self._controller.event(to, ActorsHealed(group, actor_ids))


def _problem(error: Exception) -> str:
    """Return the message about an error that has ended a heal."""
    known = isinstance(error, ValueError | RuntimeError)
    return str(error) if known else f"{type(error).__name__}: {error}"
