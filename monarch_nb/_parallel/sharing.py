"""Tensor parallelism of one module: which ranks share its layers, by which plan, whether it's proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from monarch_nb._parallel.choice import Facts
from monarch_nb._parallel.dry.outcome import CantFollow, DryRun
from monarch_nb._parallel.tensor_plans import find_plan, models_plan, prove_plan
from monarch_nb._parallel.tensor_proof import Proof, Prover, Unproven
from monarch_nb._rank.tensor.tensor_parallel import dims_of
from monarch_nb._tensor.module import DATA_AXES
from monarch_nb._tensor.plans import TENSOR_AXES, checked_plan
from monarch_nb.exceptions import MeshUsageError, ShardingError

NO_SAMPLE = (
    "not tried: parallelize(..., sample=batch) follows a forward, and proves which layers can be split"
)
ASK_FOR_SAMPLE = (
    "strategy={!r} finds layers that can be split by following a forward: parallelize(..., sample=batch); "
    'or say which: tp_plan={{"layers.*.up": "colwise", "layers.*.down": "rowwise"}}'
)


def lines_of(
    shape: Sequence[int], names: Sequence[str], ranks: Sequence[int], hosts: Sequence[str], is_asked: bool
) -> tuple[tuple[int, ...], ...]:
    """Return which ranks share layers: a line for each part of the batch. It's the axis `tp`, `tensor...` or
    `model...`; without one, the ranks of each host; if tensor parallelism was asked for, else the last axis.
    Without any, the result is empty.

    >>> lines_of((2, 2), ("data", "model"), range(4), ["a"] * 4, False)
    ((0, 1), (2, 3))
    >>> lines_of((2, 2), ("tp", "dp"), range(4), ["a"] * 4, False)
    ((0, 2), (1, 3))
    >>> lines_of((4,), ("dim_0",), range(4), ["a", "a", "b", "b"], False)
    ((0, 1), (2, 3))
    >>> lines_of((2,), ("dp",), range(2), ["a"] * 2, False)
    ()
    """
    ids = torch.tensor(list(ranks)).view(tuple(shape))
    named = [n for n, name in enumerate(names) if name.lower().startswith(TENSOR_AXES)]
    if not named and not any(name.lower().startswith(DATA_AXES) for name in names):
        found = _inside_hosts(ids.flatten().tolist(), hosts)
        if found:
            return found
    if not named and not is_asked:
        return ()
    wide = [n for n, size in enumerate(shape) if size > 1]
    axis = named[0] if named else wide[-1] if wide else 0
    moved = ids.movedim(axis, -1).reshape(-1, ids.shape[axis])
    return tuple(map(tuple, moved.tolist())) if ids.shape[axis] > 1 else ()


def _inside_hosts(ranks: Sequence[int], hosts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    by_host: dict[str, list[int]] = {}
    for rank, host in zip(ranks, hosts, strict=True):
        by_host.setdefault(host, []).append(rank)
    sizes = {len(each) for each in by_host.values()}
    return tuple(map(tuple, by_host.values())) if len(sizes) == 1 and sizes != {1} else ()


class Sharing:
    """The layers that ranks share.

    Args:
        module: the user's.
        lines: which ranks share layers, a line for each part of a batch.
        plan: the user's; None: the model's own, or one that is found.

    Attributes:
        reason: why there is no plan; "" if there is one.
        proof: of the plan, for the last forward; None before the first one.
        source: whose plan it is, in words.
    """

    def __init__(
        self,
        module: nn.Module,
        lines: Sequence[Sequence[int]],
        plan: Mapping[str, str] | None,
        is_inside: bool,
    ) -> None:
        self._module, self.lines, self.is_inside = module, tuple(map(tuple, lines)), is_inside
        self.num_parts, self.num_data = len(lines[0]), len(lines)
        self.styles: dict[str, str] = {}
        self.reason, self.source = "", "found"
        self.proof: Proof | None = None
        if plan is not None:
            self.styles, self.source = checked_plan(module, plan), "tp_plan"
        else:
            self.styles, self.reason = models_plan(module)
            self.source = "the model's own" if self.styles else "found"
        self._check_sizes()

    def _check_sizes(self) -> None:
        dims = dims_of(self._module, self.styles)
        for name, each in self._module.named_parameters():
            if name in dims and each.shape[dims[name]] % self.num_parts:
                text = (
                    f"{name} has {each.shape[dims[name]]} of what is split, and {self.num_parts} ranks "
                    "can't share that evenly"
                )
                if self.source == "tp_plan":
                    raise ShardingError(f"tp_plan: {text}; leave {name.rpartition('.')[0]} out of it")
                self.reason, self.styles = text, {}
                return

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks in the order of a grid whose first axis is that along which layers are shared."""
        return tuple(line[n] for n in range(self.num_parts) for line in self.lines)

    def try_plan(self, args: Any, kwargs: Any, rows: int, whole: Sequence[str]) -> None:
        """Find a plan, if there is none yet, and prove it for a forward.

        Raises:
            Unproven, CantFollow: if it can't be proven; the attribute `reason` says so, too.
        """
        if self.reason and not self.styles:
            raise Unproven("", self.reason)
        prover = Prover(self._module, self.num_parts, self.num_data, tuple(whole))
        try:
            if self.styles:
                known = self.proof.plan.divided if self.proof else ()
                self.proof = prove_plan(prover, self.styles, args, kwargs, rows, known)
            else:
                self.proof = find_plan(prover, args, kwargs, rows)
                self.styles = {each.path: each.style for each in self.proof.plan.layers}
        except (Unproven, CantFollow) as error:
            self.reason = str(error)
            raise
        self.reason = ""

    def error(self, reason: Unproven | CantFollow) -> ShardingError:
        """Return the error for a plan that was asked for, and isn't right."""
        if self.source == "found":
            named = [path for path, each in self._module.named_modules() if isinstance(each, nn.Linear)]
            some = ", ".join(named[:6]) + (" ..." if len(named) > 6 else "")
            return ShardingError(
                f"no layers of this module can be shared by {self.num_parts} ranks: {reason}; its Linear "
                f"layers are {some or 'none'}; say which are split, "
                'tp_plan={"up": "colwise", "down": "rowwise"}, or '
                "take strategy='fsdp'"
            )
        return ShardingError(
            f"the plan ({self.source}) doesn't give what one process computes on {self.num_parts} ranks: "
            f"{reason}; leave that layer out of tp_plan, or take strategy='fsdp'"
        )

    def dims(self) -> dict[int, int]:
        """Return along which dimension each split parameter of the user's module is split, by its id."""
        by_name = dims_of(self._module, self.styles)
        return {id(p): by_name[n] for n, p in self._module.named_parameters() if n in by_name}

    def facts(self, facts: Facts, groups: Sequence[str]) -> Facts:
        """Return the facts as the ranks of one part of the layers see them."""
        dims = self.dims()

        def size(layer: nn.Module, trained: bool = False) -> int:
            return sum(
                p.numel() * p.element_size() // (self.num_parts if id(p) in dims else 1)
                for p in layer.parameters()
                if p.requires_grad or not trained
            )

        total, trained = size(self._module), size(self._module, trained=True)
        in_groups = [size(self._module.get_submodule(path)) for path in groups]
        return replace(
            facts, num_ranks=self.num_data, num_hosts=facts.num_hosts if self.num_data > 1 else 1,
            parameter_bytes=total, trained_bytes=trained,
            largest_bytes=max([total - sum(in_groups), *in_groups]),
            state_bytes=facts.state_bytes * trained // max(1, facts.trained_bytes), num_replicas=1,
        )  # fmt: skip

    def dry(self, found: DryRun) -> DryRun:
        """Return a dry run with what a rank computes and keeps that shares layers."""
        if self.proof is None:
            return found
        return replace(found, num_flops=self.proof.num_flops, saved_bytes=self.proof.saved_bytes)

    def num_collectives(self, checkpoints: bool) -> int:
        """Return how often the ranks wait for each other in a step."""
        if self.proof is None:
            return 0
        return self.proof.num_forward * (2 if checkpoints else 1) + self.proof.num_backward

    def sent_bytes(self, checkpoints: bool) -> int:
        """Return how many bytes of activations and their gradients a rank sends in a step."""
        if self.proof is None:
            return 0
        ring = (self.num_parts - 1) / self.num_parts
        forward = 2 * self.proof.forward_bytes * (2 if checkpoints else 1)
        return int(ring * (forward + 2 * self.proof.backward_bytes + self.proof.gathered_bytes))

    def rows(self) -> list[tuple[str, str, str]]:
        """Return rows of the explanation: which layers are split how."""
        by_style: dict[str, list[str]] = {}
        for path, style in self.styles.items():
            by_style.setdefault(style, []).append(path)
        rows = [("split", _starred(paths), f"{style} over {self.num_parts} ranks ({self.source})")
                for style, paths in by_style.items()]  # fmt: skip
        heads: dict[tuple[str, int], list[str]] = {}
        for each in self.proof.plan.divided if self.proof else ():
            heads.setdefault((each.attribute, each.value), []).append(each.path)
        rows += [
            ("split", _starred(paths), f"{name}={value} on each rank")
            for (name, value), paths in heads.items()
        ]
        return rows


def _starred(paths: Sequence[str]) -> str:
    """Return paths with numbers of layers as `*`.

    >>> _starred(["blocks.0.up", "blocks.1.up", "head"])
    'blocks.*.up, head'
    """
    found = dict.fromkeys(
        ".".join("*" if part.isdigit() else part for part in path.split(".")) for path in paths
    )
    exact = len(paths) == 1 or all("*" not in each.split(".") for each in found)
    return ", ".join(paths if exact else found)


def check_asked(strategy: str, lines: Sequence[Sequence[int]], size: int) -> None:
    """Raise if layers were to be shared, and there's nobody to share them with.

    Raises:
        MeshUsageError: for a mesh without an axis to share layers over.
    """
    if not lines:
        raise MeshUsageError(
            f"strategy={strategy!r} shares layers over the axis 'tp' or 'model...' of a mesh; this mesh of "
            f"{size} has none with more than one rank: Mesh(shape=(2, 2), mesh_dim_names=('dp', 'tp'))"
        )
