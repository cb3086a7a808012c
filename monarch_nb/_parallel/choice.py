"""Chooses the strategy of a module: estimates memory and time of each, and takes the fastest one that fits.

Memory is counted from shapes: parameters, gradients, the optimiser's state, what the forward keeps for the
backward. Time is the larger part of computing and communicating, by rates that are assumed; so read it as an
order of the candidates, not as a forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from torch import nn

from monarch_nb._parallel.dry.outcome import DryRun
from monarch_nb._units import size_text

Strategy = Literal["ddp", "fsdp", "hsdp"]

SLACK = 1.1
RESERVE_BYTES = 1 << 30
ALIKE = 0.03
"""Candidates whose times differ by less count as equal: the simpler one is taken."""
FLOPS = {"cpu": 50e9, "cuda": 200e12}
INSIDE = {"cpu": 3e9, "cuda": 200e9}
BETWEEN = {"cpu": 1e9, "cuda": 20e9}
LATENCY = {"cpu": 200e-6, "cuda": 20e-6}
"""Of a collective for which everything waits: those of layers that ranks share."""
STATES = {"SGD": 1, "Adam": 2, "AdamW": 2, "RMSprop": 1, "Adagrad": 1}


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that the choice of a strategy depends on.

    Attributes:
        num_ranks, num_hosts: size of the mesh.
        num_replicas: number of copies of the parameters that "hsdp" keeps, each sharded; 1: "hsdp" can't be
            used.
        device: "cpu" or "cuda".
        free_bytes: free memory for one rank.
        parameter_bytes: of all parameters; `trained_bytes` of those that are trained.
        largest_bytes: size of the largest group of parameters that is gathered at once.
        state_bytes: size of the optimiser's state.
        num_blocks: number of repeated layers.
    """

    num_ranks: int
    num_hosts: int
    device: str
    free_bytes: int
    parameter_bytes: int
    trained_bytes: int
    largest_bytes: int
    state_bytes: int
    num_blocks: int
    num_replicas: int = 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate strategy for running a module.

    Attributes:
        checkpoints: whether activations of repeated layers are recomputed in the backward.
        reshards: whether gathered parameters are freed after the forward.
        peak_bytes, seconds: estimates for a step on one rank.
        sent_bytes: bytes that a rank sends in a step.
        fits: whether it fits into a rank's memory.
        num_replicas: how many copies of the parameters there are, if each is sharded over several ranks.
        num_parts: how many ranks share layers (tensor parallelism); the strategy is that of the others.
        num_data: over how many ranks the batch is split then.
    """

    strategy: Strategy
    checkpoints: bool
    reshards: bool
    peak_bytes: int
    seconds: float
    sent_bytes: int
    fits: bool
    num_replicas: int = 1
    num_parts: int = 1
    num_data: int = 1

    @property
    def name(self) -> str:
        """The name of the strategy for users."""
        words = {"ddp": "DDP", "fsdp": "FSDP2", "hsdp": "HSDP"}[self.strategy]
        if self.num_parts > 1:
            words = f"TP {self.num_parts}" + (f" x {words} {self.num_data}" if self.num_data > 1 else "")
        kept = "" if self.strategy == "ddp" or self.reshards else ", parameters kept after the forward"
        return words + kept + (", checkpointing" if self.checkpoints else "")


def facts_of(
    module: nn.Module,
    groups: Sequence[str],
    machine: tuple[int, int, str, int],
    optimizer: str,
    num_replicas: int = 1,
) -> Facts:
    """Return the facts that the choice of a strategy needs: sizes of a module's parameters, and the ranks'
    resources.

    Args:
        groups: paths of layers whose parameters are gathered one layer at a time.
        machine: number of ranks, number of hosts, device, free bytes of a rank.
        num_replicas: for "hsdp": see `Facts`.
    """
    num_ranks, num_hosts, device, free = machine
    total = _bytes(module)
    in_groups = [_bytes(module.get_submodule(path)) for path in groups]
    trained = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    numbers = sum(p.numel() for p in module.parameters() if p.requires_grad)
    width = max((p.element_size() for p in module.parameters()), default=4)
    largest = max([total - sum(in_groups), *in_groups])
    states = STATES.get(optimizer, 2) * numbers * width
    return Facts(
        num_ranks, num_hosts, device, free, total, trained, largest, states, len(groups), num_replicas
    )  # fmt: skip


def _bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def candidates(facts: Facts, dry: DryRun | None, checkpoint: bool | None) -> list[Candidate]:
    """Return the possible strategies for a module, the simplest first.

    Args:
        dry: the module's dry run; without it, activations count as 0 bytes.
        checkpoint: whether activations are recomputed; None: both variants.
    """
    ways: list[tuple[Strategy, bool]] = [("ddp", True)]
    if facts.num_ranks > 1:
        ways += [("fsdp", False), ("fsdp", True)]
        if 1 < facts.num_replicas < facts.num_ranks and facts.num_ranks % facts.num_replicas == 0:
            ways.append(("hsdp", True))
    flags = [False, True] if checkpoint is None and facts.num_blocks else [bool(checkpoint)]
    return [_candidate(facts, dry, *way, flag) for flag in flags for way in ways]


class Shared(Protocol):
    """The facts that the choice needs to know of layers that ranks share: see `sharing.Sharing`."""

    num_parts: int
    num_data: int
    is_inside: bool

    def num_collectives(self, checkpoints: bool) -> int:
        """Return how often ranks that share layers wait for each other in a step."""

    def sent_bytes(self, checkpoints: bool) -> int:
        """Return how many bytes a rank sends in a step because of them."""


def shared_candidates(
    facts: Facts, dry: DryRun | None, checkpoint: bool | None, shared: Shared
) -> list[Candidate]:
    """Return the possible strategies with layers that ranks share, the simplest first.

    Args:
        facts, dry: as a rank that has parts of the layers sees them.
        checkpoint: see `candidates`.
    """
    return [_shared(facts, each, shared) for each in candidates(facts, dry, checkpoint)]


def _shared(facts: Facts, way: Candidate, shared: Shared) -> Candidate:
    more = shared.sent_bytes(way.checkpoints)
    rate = (INSIDE if shared.is_inside else BETWEEN)[facts.device]
    waits = shared.num_collectives(way.checkpoints) * LATENCY[facts.device] + more / rate
    return replace(
        way, seconds=way.seconds + waits, sent_bytes=way.sent_bytes + more, num_parts=shared.num_parts,
        num_data=shared.num_data,
    )  # fmt: skip


def _candidate(
    facts: Facts, dry: DryRun | None, strategy: Strategy, reshards: bool, checkpoints: bool
) -> Candidate:
    peak = _peak(facts, strategy, reshards) + _activations(facts, dry, checkpoints)
    inside, between = _sent(facts, strategy, reshards)
    computes = (dry.num_flops if dry else 0) * (4 if checkpoints else 3) / FLOPS[facts.device]
    moves = inside / INSIDE[facts.device] + between / BETWEEN[facts.device]
    fits = peak * SLACK + RESERVE_BYTES <= facts.free_bytes
    return Candidate(
        strategy, checkpoints, reshards, peak, max(computes, moves) + 0.1 * min(computes, moves),
        inside + between, fits, facts.num_replicas if strategy == "hsdp" else 1,
    )  # fmt: skip


def _peak(facts: Facts, strategy: Strategy, reshards: bool) -> int:
    whole = facts.parameter_bytes + facts.trained_bytes + facts.state_bytes
    if strategy == "ddp":
        return whole + facts.trained_bytes * (facts.num_ranks > 1)  # buckets
    parts = facts.num_ranks // facts.num_replicas if strategy == "hsdp" else facts.num_ranks
    gathered = 2 * facts.largest_bytes if reshards else facts.parameter_bytes
    return whole // parts + gathered + facts.largest_bytes


def _activations(facts: Facts, dry: DryRun | None, checkpoints: bool) -> int:
    if dry is None:
        return 0
    if not checkpoints or not facts.num_blocks:
        return dry.saved_bytes
    return dry.saved_bytes // facts.num_blocks + dry.saved_bytes // 16


def _sent(facts: Facts, strategy: Strategy, reshards: bool) -> tuple[int, int]:
    """Return the number of bytes that a rank sends in a step: within its host, and to other hosts."""
    num, hosts = facts.num_ranks, facts.num_hosts
    if num == 1:
        return 0, 0
    ring = (num - 1) / num
    if strategy == "hsdp":
        copies = facts.num_replicas
        parts = num // copies
        shards = (parts - 1) / parts * (2 * facts.parameter_bytes + facts.trained_bytes)
        sums = 2 * (copies - 1) / copies * facts.trained_bytes / parts
        return (int(shards + sums), 0) if hosts == 1 else (int(shards), int(sums))
    gathers = 0 if strategy == "ddp" else (2 if reshards else 1) * facts.parameter_bytes
    reduces = (2 if strategy == "ddp" else 1) * facts.trained_bytes
    total = int(ring * (gathers + reduces))
    return (total, 0) if hosts == 1 else (0, total)


def choose(ways: Sequence[Candidate]) -> Candidate:
    """Return the fastest candidate that fits into memory, of equally fast ones the first; if none fits, the
    one that needs the least memory.
    """
    fitting = [each for each in ways if each.fits]
    if not fitting:
        return min(ways, key=lambda each: each.peak_bytes)
    best = min(each.seconds for each in fitting)
    return next(each for each in fitting if each.seconds <= best * (1 + ALIKE))


def why_not(way: Candidate, taken: Candidate, facts: Facts) -> str:
    """Return why a candidate wasn't chosen."""
    if not way.fits:
        need = way.peak_bytes * SLACK + RESERVE_BYTES
        return f"doesn't fit: needs {size_text(int(need))}, {size_text(facts.free_bytes)} free"
    if way.seconds > taken.seconds * (1 + ALIKE):
        return (
            f"slower: {size_text(way.sent_bytes)} sent a step, {size_text(taken.sent_bytes)} by what is taken"
        )
    return "as fast, and less simple"
