"""Maps each type of request to the role that it needs. Each type has a line here; one without is refused to
all but the mesh's own processes and its owner's programs, and fails `tests/unit/test_permissions.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from monarch_nb._protocol import (
    cells,
    debugging,
    environment,
    hang,
    healing,
    invitations,
    journal,
    keyboard,
    names,
    programs,
    questions,
    ranks,
    roles,
)
from monarch_nb._protocol.base import Request
from monarch_nb._protocol.roles import Role
from monarch_nb._workspace import answers
from monarch_nb.status import messages

Kinds = Iterable[type[Request[Any]]]

_READS: Kinds = (
    cells.ReadOutput, cells.Taken, cells.Unwatch, cells.WatchCell, cells.WatchOutput,
    debugging.DebugGroups, debugging.DebugStops,
    journal.GetEntry, journal.GetHistory, journal.GetMissed,
    keyboard.UserQuestions,
    messages.Snapshot, messages.StatusTaken, messages.UnwatchStatus, messages.WatchStatus,
    names.GetMesh, names.GetName,
    programs.Goodbye, programs.Hello, programs.InUse, programs.Leaving, programs.SettleOutput,
    programs.Status,
    ranks.WaitHosts, ranks.WaitProcs,
)  # fmt: skip
_OPERATES: Kinds = (
    cells.ForgetDefinitions, cells.RunCell,
    debugging.DebugBreak, debugging.DebugCommand, debugging.DebugPostMortem, debugging.DebugSet,
    debugging.UnwatchDebug, debugging.WatchDebug,
    environment.GetEnvironments,
    hang.Hang, hang.Stacks,  # these stop ranks for a moment
    healing.ActorSpawned, healing.ActorStopped, healing.Heal,
    journal.Note, journal.Seen,
    keyboard.AnswerUser, keyboard.RefuseUser,
    names.FindController,
    ranks.AbortCall, ranks.Interrupt, ranks.InterruptCell,
)  # fmt: skip
_OWNS: Kinds = (
    environment.SetDifferences, environment.UseEnvironments,
    invitations.Invite, invitations.Refusals, invitations.Withdraw,
    healing.Resize, healing.SetPolicy,
    journal.SetJournal,
    names.SetMesh, names.SetName,
    programs.Adopt, programs.ClaimName, programs.SetLease, programs.SetNotice, programs.SetOwner,
    programs.SetTimeLimit, programs.ShutDown,
    ranks.Restart, ranks.SetProcEnvironment, ranks.Signal, ranks.Spawn, ranks.Stop, ranks.StopHosts,
    ranks.Tickets,
    roles.GetAudit, roles.ListKeys, roles.Rekey, roles.Share, roles.Unshare,
)  # fmt: skip
_OF_THE_MESH_ITSELF: Kinds = (
    answers.EditWorkspace, answers.GreetWorkspace, answers.LinkWorkspace, answers.LookAtWorkspace,
    answers.PlaceWorkspace, answers.SetElsewhere, answers.TakeContent, answers.TakeContents,
    debugging.DebugLeft, debugging.DebugRunning, debugging.DebugStopped,
    environment.GetPackages, environment.SwitchEnvironment,
    healing.CheckpointFailed, healing.CheckpointGather,
    keyboard.AskNoMore, keyboard.AskUser,
    questions.AbortCollectives, questions.AwaitedThings, questions.CancelCell,
    questions.CheckpointVersions, questions.DescribeProcessGroup, questions.InterruptCall,
    questions.LivingActors, questions.Ping, questions.SetBreak, questions.StopActor,
    questions.ThreadStacks, questions.WhereNow,
    ranks.SignalRanks, ranks.StartRanks, ranks.StopRanks,
)  # fmt: skip
"""Requests between processes of the mesh, and those sent to each host directly."""


def _names(kinds: Kinds) -> frozenset[str]:
    return frozenset(kind.wire_name for kind in kinds)


NEEDS: dict[str, Role] = {
    name: role
    for role, kinds in (
        (Role.OBSERVER, _READS),
        (Role.OPERATOR, _OPERATES),
        (Role.OWNER, (*_OWNS, *_OF_THE_MESH_ITSELF)),
    )
    for name in _names(kinds)
}
"""The minimum role for a request, by its name on the wire."""

UNNOTED = _names(
    (cells.Taken, cells.Unwatch, messages.StatusTaken, messages.UnwatchStatus, programs.SettleOutput)
)
"""Acknowledgements and ends of watches, which the audit leaves out."""

_NOT_NOTED: Kinds = (
    environment.SetDifferences, invitations.Refusals, names.SetMesh, names.SetName, programs.ClaimName,
    roles.GetAudit, roles.ListKeys,
)  # fmt: skip
_NOTED: Kinds = (
    *_OWNS, cells.RunCell, healing.Heal, ranks.AbortCall, ranks.Interrupt, ranks.InterruptCell,
)  # fmt: skip
NOTED_OF_OWNER = _names(_NOTED) - _names(_NOT_NOTED)
"""Requests of the owner's programs that the audit records; these programs may do everything."""


def needed(name: str) -> Role:
    """Return the minimum role for a request.

    >>> needed("status"), needed("run_cell"), needed("no_such_thing")
    (<Role.OBSERVER: 1>, <Role.OPERATOR: 2>, <Role.OWNER: 3>)
    """
    return NEEDS.get(name, Role.OWNER)


def refusal(name: str, role: Role, mesh: str, least: Role | None = None) -> str:
    """Return why a request is refused: the member's role, the required one, and what to type.

    Args:
        least: the role that's needed, of what is no request.

    >>> print(refusal("run_cell", Role.OBSERVER, "lab").replace(": ", ":\\n"))
    'run cell' needs the role operator, and yours in mesh 'lab' is observer:
    its owner can give you that:
    %mesh share --role operator
    """
    least, what = least or needed(name), name.replace("_", " ")
    more = (
        "nobody else can be given that: ask its owner to do it"
        if least is Role.OWNER
        else f"its owner can give you that: %mesh share --role {least.word}"
    )
    return f"{what!r} needs the role {least.word}, and yours in mesh {mesh!r} is {role.word}: {more}"
