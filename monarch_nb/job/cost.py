"""The cost of hosts: they are paid from the moment that they're granted until they're given back, each by
itself, and never while a request waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from monarch_nb._protocol.programs import Cost
from monarch_nb.job.allocation import Allocation, Spent
from monarch_nb.job.engines import Look, State

_HELD = (State.GRANTED, State.LEAVING)


def counted(asked: Allocation, look: Look, now: float) -> Allocation:
    """Return a request with its hosts' time up to now, as the engine says how many there are.

    >>> from monarch_nb.job.allocation import Plan
    >>> from monarch_nb.job.spec import HostSpec
    >>> asked = Allocation("big", "lab", HostSpec("slurm"), plan=Plan(), submitted_at=0.0)
    >>> two = counted(asked, Look(State.GRANTED, nodes=("n1", "n2")), 600.0)
    >>> counted(two, Look(State.GRANTED, nodes=("n1",)), 660.0).spent
    Spent(host_s=120.0, counted_at=660.0, num_hosts=1)
    """
    num = (len(look.nodes) or asked.spec.wanted.least) if look.state in _HELD else 0
    if not asked.spent.counted_at:
        if not num:
            return asked
        begun = now if look.starts_at is None else max(asked.submitted_at, min(look.starts_at, now))
        return replace(asked, spent=Spent(num * (now - begun), now, num))
    return replace(asked, spent=Spent(host_seconds(asked.spent, now), now, num))


def host_seconds(spent: Spent, now: float) -> float:
    """Return the seconds of all hosts up to now, added up."""
    return spent.host_s + spent.num_hosts * max(0.0, now - spent.counted_at)


def given_back(asked: Allocation, now: float) -> Allocation:
    """Return a request that has no hosts any more."""
    spent = asked.spent
    return replace(asked, spent=Spent(host_seconds(spent, now), now, 0)) if spent.counted_at else asked


def with_earlier(asked: Allocation, earlier: Iterable[Allocation], now: float) -> Allocation:
    """Return a request that answers for earlier ones, too, whose hosts were given back."""
    before_s = sum(host_seconds(each.spent, now) for each in earlier)
    spent = replace(asked.spent, host_s=asked.spent.host_s + before_s)
    return replace(asked, spent=spent)


def cost_of(requests: Iterable[Allocation]) -> Cost | None:
    """Return the cost of requests; None if their profile names no price, or none was granted yet."""
    paid = [each for each in requests if each.spec.usd_per_gpu_hour and each.spec.gpus]
    if not any(each.spent.counted_at for each in paid):
        return None
    at = max(each.spent.counted_at for each in paid)
    return Cost(
        num_gpus=sum(each.spent.num_hosts * (each.spec.gpus or 0) for each in paid),
        usd=sum(_usd_per_host_s(each) * host_seconds(each.spent, at) for each in paid),
        usd_per_hour=sum(_usd_per_host_s(each) * each.spent.num_hosts * 3600 for each in paid),
        counted_at=at,
    )


def _usd_per_host_s(asked: Allocation) -> float:
    return (asked.spec.usd_per_gpu_hour or 0.0) * (asked.spec.gpus or 0) / 3600
