"""Creates the ranks' default process group again, after an abort or with ranks that have been replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from monarch_nb._host.controller.asking import Answers, Asking
from monarch_nb._host.controller.workflow import Workflow
from monarch_nb._host.loop import Loop
from monarch_nb._protocol.failure import Failure
from monarch_nb._protocol.process_group import RemakeGroup, StoreAddress
from monarch_nb._protocol.questions import DescribeProcessGroup, ProcessGroup, WhereNow
from monarch_nb._protocol.work import Work
from monarch_nb._shape import name_ranks

_DESCRIBE_S = 2.0
_START_S = 5.0
_REMAKE_S = 20.0
_FUNCTIONS_S = 5.0
"""How long to wait for running functions: one that hung in a collective is about to raise."""
_LOOK_S = 0.1
_BROKEN = "the process group is broken and was not made anew"
_ADVICE = f"{_BROKEN}{{}}: on all ranks, dist.destroy_process_group() and dist.init_process_group(...)"


class KnowsBusy(Protocol):
    """The interface to the work that runs on ranks."""

    def busy(self, ranks: Mapping[int, int]) -> str:
        """Return which of some ranks are busy, as a rank set; empty if none is."""
        ...


class Parts(Protocol):
    """The parts of a controller that this module uses."""

    @property
    def asking(self) -> Asking:
        """Questions to ranks."""
        ...

    @property
    def cells(self) -> KnowsBusy:
        """The cells that run."""
        ...

    @property
    def loop(self) -> Loop:
        """Timers."""
        ...


def remake_groups(
    controller: Parts, ranks: dict[int, int], *, size_before: int = 0, if_torn: bool = False, retry: str = ""
) -> Workflow[str]:
    """Create the default process group again on ranks (rank to proc), if they have one that consists of all
    of them.

    Args:
        ranks: who shall be in it, whether they were before or not.
        size_before: how many ranks it had; by default as many as it shall have.
        if_torn: only if some of them have one and others don't.
        retry: what makes it anew later, when ranks are busy with functions now.

    Returns:
        What to tell people; empty if there was no group.
    """
    found = yield partial(controller.asking.ask, ranks, DescribeProcessGroup(), timeout_s=_DESCRIBE_S)
    known: dict[int, ProcessGroup] = {r: g for r, g in found.items() if g}
    if not known or (if_torn and len(known) == len(ranks)):
        return ""
    kinds = {(g.backend, g.world_size) for g in known.values()}
    if len(kinds) > 1 or next(iter(kinds))[1] != (size_before or len(ranks)):
        return _ADVICE.format(", for it isn't of all ranks of the mesh")
    busy = controller.cells.busy(ranks)
    if busy:
        return _ADVICE.format(f", since ranks {busy} are busy or lost")
    busy = yield from _busy_with_functions(controller, ranks)
    if busy:
        return f"{_BROKEN}, since {busy}; {retry}" if retry else _ADVICE.format(f", since {busy}")
    first = min(ranks)
    answers = yield partial(
        controller.asking.have_done,
        {first: ranks[first]},
        Work.START_RENDEZVOUS,
        None,
        timeout_s=_START_S,
        answer=StoreAddress,
    )
    if not answers:
        return _ADVICE.format(f", for rank {first} could not start a store")
    store: StoreAddress = next(iter(answers.values()))
    ((backend, _),) = kinds
    timeout_s = max(g.timeout_s for g in known.values())
    places = {rank: place for place, rank in enumerate(sorted(ranks))}
    made = yield partial(
        controller.asking.have_done,
        ranks,
        Work.REMAKE_GROUP,
        RemakeGroup(store, len(ranks), backend, timeout_s, places),
        timeout_s=_REMAKE_S,
        keeps_refusals=True,
    )
    problem = _problem(ranks, made)
    return (
        _ADVICE.format(f", for {problem}")
        if problem
        else f"the process group has been made anew ({backend}, {len(ranks)} ranks)"
    )


def _busy_with_functions(controller: Parts, ranks: dict[int, int]) -> Workflow[str]:
    """Wait for functions that run on main threads, for a while; return which ranks still run one, or nothing.

    What makes the group waits behind them, and ranks that are free would wait for them in it, for as long as
    the group's time-out.
    """
    deadline = time.monotonic() + _FUNCTIONS_S
    while True:
        found = yield partial(controller.asking.ask, ranks, WhereNow(), timeout_s=_DESCRIBE_S)
        busy = [rank for rank, where in sorted(found.items()) if where.in_function]
        if not busy:
            return ""
        if time.monotonic() > deadline:
            return f"{name_ranks(busy)} still {'runs a function' if len(busy) == 1 else 'run functions'}"
        yield partial(_after, controller, _LOOK_S)


def _after(controller: Parts, seconds: float, go_on: Callable[[Any], None]) -> None:
    controller.loop.call_later(seconds, lambda: go_on(None))


def _problem(ranks: dict[int, int], made: Answers) -> str:
    """Return why some ranks aren't in the new group; empty if all are."""
    for rank, refusal in sorted(made.items()):
        if isinstance(refusal, Failure):
            return f"rank {rank} raised {refusal.type}: {refusal.message.partition(chr(10))[0]}"
    silent = [r for r in ranks if r not in made]
    return f"{name_ranks(silent)} did not answer within {_REMAKE_S:g} s" if silent else ""
