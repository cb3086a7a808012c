"""Modules that run unchanged on the ranks: a forward is one command, a backward another. Loss and optimiser
belong to the program, and work on tensors of the mesh.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.utils import _pytree as pytree

from monarch_nb._parallel.call import Call, Run
from monarch_nb._parallel.changes import Watched
from monarch_nb._parallel.choice import Candidate, candidates, choose, facts_of, shared_candidates
from monarch_nb._parallel.dry.outcome import CantFollow, DryRun, LocalMismatch, LooksAcross, filled
from monarch_nb._parallel.dry.runner import DryRunner
from monarch_nb._parallel.explanation import Explanation, ties_of
from monarch_nb._parallel.mismatch import across_error, mismatch_error
from monarch_nb._parallel.rules import row_dim
from monarch_nb._parallel.sharing import ASK_FOR_SAMPLE, NO_SAMPLE, Sharing, check_asked, lines_of
from monarch_nb._parallel.tensor_proof import Unproven
from monarch_nb._rank.tensor.inside import is_constant
from monarch_nb._rank.tensor.private import own_buffers, parametrized_sent
from monarch_nb._rank.tensor.protocol import Hole, ParallelSpec, TensorPlan
from monarch_nb._tensor.distribute import relaid
from monarch_nb._tensor.elsewhere import ASK_S, Elsewhere
from monarch_nb._tensor.engines import grid_of
from monarch_nb._tensor.metadata import Grid, Placements, contiguous, intern
from monarch_nb._tensor.module import brought, check_module, copied
from monarch_nb._tensor.regrid import Regrid, can_regrid
from monarch_nb._tensor.tensor import Tensor
from monarch_nb._wire.codec import encode, find_unpicklable, to_bytes
from monarch_nb.exceptions import MeshUsageError

M = TypeVar("M", bound=nn.Module)
STRATEGIES = ("auto", "ddp", "fsdp", "hsdp", "tp", "ddp+tp", "fsdp+tp")
SHARED = STRATEGIES[4:]
PRECISIONS = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16"}
CANT_FOLLOW = "the forward can't be followed without numbers"


def parallelize(
    module: M,
    mesh: Any,
    strategy: str = "auto",
    *,
    sample: Any = None,
    replicate: Sequence[str] = (),
    optimizer: Any = "AdamW",
    precision: str | None = None,
    checkpoint: bool | str = "auto",
    compile: bool = False,  # noqa: A002 (what torch calls it)
    memory: int | None = None,
    tp_plan: Mapping[str, str] | None = None,
) -> M:
    """Return a copy of a module that runs on all ranks of a mesh. A training loop written for one device
    stays unchanged: the optimiser gets `model.parameters()`, and inputs and targets are plain tensors.

    Each rank computes its rows of the batch with torch's own DistributedDataParallel or fully_shard. Layers
    that mix rows of the batch (batch norm, an attention that selects tokens of the whole batch) are found by
    a run without values, and every rank runs them on the whole batch, so that the results equal those of one
    process. `explain(model)` shows the chosen strategy.

    Args:
        module: any module whose parameters have values. Its Python attributes are copied as they are now.
        mesh: a `monarch_nb.distributed.Mesh`, or any other mesh. The batch is split over all of its ranks.
        strategy: "auto" chooses the fastest one that fits into memory. "ddp", "fsdp" (FSDP2) and "hsdp" are
            explicit choices; layers that mix rows are then an error unless they're in `replicate`. "hsdp"
            replicates over the first axis of the mesh and shards over the others; on a mesh of one axis it
            replicates between hosts and shards within each. "tp" (tensor parallelism) splits layers over the
            axis called `tp`, `tensor...` or `model...`, else over the ranks of each host, and the batch over
            the rest, there by DDP or FSDP2, whichever is faster and fits; "ddp+tp" and "fsdp+tp" say which.
        sample: an input, or a tuple of inputs. With it, the choice takes activations into account, and errors
            are raised at once; without it, both happen at the first forward. "tp" needs it to find a plan.
        replicate: paths of layers that every rank runs on the whole batch.
        optimizer: name or class of the optimiser that will be used, for the size of its state.
        precision: "bf16" or "fp16", the dtype that layers compute in; parameters keep theirs.
        checkpoint: True recomputes activations of repeated layers in the backward; "auto": only if memory
            requires it.
        compile: use torch.compile on the ranks.
        memory: bytes that one rank may use; by default its free memory.
        tp_plan: which layers are split how, by path, as in `{"layers.*.up": "colwise", "layers.*.down":
            "rowwise"}`; `*` stands for any one name. Given with "auto", layers are split in any case. Styles
            are "colwise", "rowwise", "colwise_gather_output" (its result is gathered) and
            "replicated_with_grad_allreduce" (a norm between split layers). By default it's the plan that a
            model of transformers brings, or one that is found. Each is proven by a run without values.

    Raises:
        MeshUsageError: for an unknown strategy, precision, layer, style or other option.
        ShapeError, ShardingError: for a layer that mixes rows of the batch, with an explicit strategy; for a
            plan by which ranks would compute something else, and if none is found for "tp".

    Example:
        >>> model = monarch_nb.parallelize(GPT(), mesh)                 # doctest: +SKIP
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)  # doctest: +SKIP
        >>> loss = criterion(model(inputs), targets)                    # doctest: +SKIP
        >>> loss.backward(); optimizer.step()                           # doctest: +SKIP
        >>> monarch_nb.explain(model)                                   # doctest: +SKIP
    """
    check_module(module)
    _check_words(module, strategy, replicate, precision, checkpoint)
    if tp_plan is not None and strategy not in ("auto", *SHARED):
        raise MeshUsageError(f"tp_plan is for strategy='auto' or 'tp'; not for {strategy!r}")
    asked = _Asked(
        strategy,
        tuple(replicate),
        optimizer if isinstance(optimizer, str) else optimizer.__name__,
        PRECISIONS.get(precision or "", ""),
        None if checkpoint == "auto" else bool(checkpoint),
        compile,
        memory,
        tp_plan,
    )
    made: M = Parallel(module, mesh, asked, sample).made
    return made


def explain(model: nn.Module) -> Explanation:
    """Return the explanation of a module's strategy: the chosen one, the reason, and the cost of the others.

    Raises:
        MeshUsageError: for a module that wasn't made by `parallelize`.
    """
    return parallel_of(model).explanation()


def parallel_of(model: nn.Module) -> Parallel:
    """Return the `Parallel` that runs a module on the ranks.

    Raises:
        MeshUsageError: for a module that wasn't made by `parallelize`.
    """
    found = model.__dict__.get("forward") if isinstance(model, nn.Module) else None
    if isinstance(found, Parallel):
        return found
    raise MeshUsageError("expected a module that monarch_nb.parallelize(module, mesh) has returned")


def _check_words(
    module: nn.Module, strategy: str, replicate: Sequence[str], precision: str | None, checkpoint: bool | str
) -> None:
    if strategy not in STRATEGIES:
        raise MeshUsageError(f"strategy is one of {', '.join(map(repr, STRATEGIES))}; not {strategy!r}")
    if precision is not None and precision not in PRECISIONS:
        raise MeshUsageError(f"precision is 'bf16', 'fp16' or None; not {precision!r}")
    if checkpoint not in (True, False, "auto"):
        raise MeshUsageError(f"checkpoint is True, False or 'auto'; not {checkpoint!r}")
    if isinstance(replicate, str):
        raise MeshUsageError(f"replicate is a list of layers: replicate=[{replicate!r}]")
    paths = {path for path, _ in module.named_modules()}
    for path in replicate:
        if path not in paths:
            near = [p for p in paths if p.rpartition(".")[2] == str(path).rpartition(".")[2]] or sorted(
                paths
            )[1:6]
            raise MeshUsageError(
                f"the module has no layer {path!r}; it has {', '.join(map(repr, sorted(near)))}"
            )


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options that the user gave: see `parallelize`."""

    strategy: str
    replicate: tuple[str, ...]
    optimizer: str
    precision: str
    checkpoint: bool | None
    compiles: bool
    memory: int | None
    plan: Mapping[str, str] | None = None

    @property
    def shares(self) -> bool:
        """Whether layers have to be shared."""
        return self.strategy in SHARED or self.plan is not None


class Parallel:
    """A module that runs on the ranks of a mesh: its forward in this program.

    Attributes:
        made: the module in this program; its parameters are tensors of the mesh.
    """

    def __init__(self, module: nn.Module, mesh: Any, asked: _Asked, sample: Any) -> None:
        self._mesh, self._asked = mesh, asked
        self._num_ranks = math.prod(grid_of(mesh).shape)
        self._runners: dict[int, DryRunner] = {}
        self._module = module
        self._groups = _groups(module)
        self._dtype = _most_common_dtype(module)
        self._ties = ties_of([(n, id(p)) for n, p in module.named_parameters(remove_duplicate=False)])
        self._known: dict[Any, DryRun | None] = {}
        self._taking: dict[int, list[int]] = {}
        """Numbers of the parameters that take part in a forward and want gradients, by the id of its dry run;
        of those that the module on the ranks is built for.
        """
        self._last: DryRun | None = None
        self._slow = ""
        self._built: tuple[Tensor, ParallelSpec] | None = None
        machine, hosts = self._machine(mesh)
        replicas = _replicas(grid_of(mesh).shape, machine[1], asked.strategy)
        self._facts = facts_of(module, self._groups, machine, asked.optimizer, replicas)
        self._skeleton = _skeleton(module)
        self._possible = self._may_share(hosts)
        drys: dict[int, DryRun | None] = {}
        self._ways = self._tried(sample, drys)
        self._taken = self._choose()
        self._sharing = self._possible if self._taken.num_parts > 1 else None
        self._num_data = self._taken.num_data if self._sharing else self._num_ranks
        self._runner, self._last = self._runner_of(self._num_data), drys.get(self._num_data)
        self._dims = self._sharing.dims() if self._sharing else {}
        self._grid = self._grid_for(mesh)
        self._num_heals = self._grid.engine.num_heals
        self.made: Any = copied(module, self._grid, self._layout)
        self.made.forward = self
        self._names = [name for name, _ in self.made.named_parameters()]
        self._watched = Watched(self.made, Elsewhere.of(grid_of(mesh).engine.control, mesh))

    # --- the choice

    def _machine(self, mesh: Any) -> tuple[tuple[int, int, str, int], list[str]]:
        found = list(grid_of(mesh).engine.control.machine.call().get(ASK_S).values())
        hosts = [host for host, _, _ in found]
        device = next(kind for _, kind, _ in found)
        on_host = max(hosts.count(each) for each in hosts)
        free = min(size for *_, size in found) // (on_host if device == "cpu" else 1)
        return (len(hosts), len(set(hosts)), device, self._asked.memory or free), hosts

    def _may_share(self, hosts: Sequence[str]) -> Sharing | None:
        """Return which ranks could share layers; None if none may."""
        if self._asked.strategy not in ("auto", *SHARED):
            return None
        grid = grid_of(self._mesh)
        lines = lines_of(grid.shape, grid.names, grid.ranks, hosts, self._asked.shares)
        if self._asked.shares:
            check_asked(self._asked.strategy, lines, self._num_ranks)
        if not lines:
            return None
        place = dict(zip(grid.ranks, hosts, strict=True))
        is_inside = all(len({place[rank] for rank in line}) == 1 for line in lines)
        return Sharing(self._module, lines, self._asked.plan, is_inside)

    def _runner_of(self, num_data: int) -> DryRunner:
        """Return what follows a forward of a batch that is split over so many ranks."""
        if num_data not in self._runners:
            self._runners[num_data] = DryRunner(self._module, num_data, self._asked.replicate)
        return self._runners[num_data]

    def _tried(self, sample: Any, drys: dict[int, DryRun | None]) -> list[Candidate]:
        """Return the possible strategies. If there's a sample, its forward is followed; `drys` gets the dry
        runs by the number of ranks over which it's split.
        """
        args = sample if isinstance(sample, tuple) else (sample,)
        rows = _rows(pytree.tree_leaves(args))
        ways = []
        if not self._asked.shares:
            if sample is not None:
                drys[self._num_ranks] = self._dry_of_sample(args, rows)
            ways = candidates(self._facts, drys.get(self._num_ranks), self._asked.checkpoint)
        if self._possible is None:
            return ways
        if sample is None:
            return ways + self._untried(self._possible)
        try:
            found = self._shared_dry(self._possible, args, {}, rows)
        except (Unproven, CantFollow) as error:
            if self._asked.shares:
                raise self._possible.error(error) from None
            self._possible.reason = str(error)
            return ways
        drys[self._possible.num_data] = found
        return ways + self._shared_ways(self._possible, found)

    def _dry_of_sample(self, args: Any, rows: int) -> DryRun | None:
        try:
            return self._dry(args, {}, rows, self._runner_of(self._num_ranks))
        except CantFollow as error:
            self._slow = f"{CANT_FOLLOW}: {error}"
            return None

    def _untried(self, sharing: Sharing) -> list[Candidate]:
        if self._asked.shares and sharing.styles:  # it's proven at the first forward
            return self._shared_ways(sharing, None)
        if self._asked.shares:
            raise MeshUsageError(sharing.reason or ASK_FOR_SAMPLE.format(self._asked.strategy))
        sharing.reason = sharing.reason or NO_SAMPLE
        return []

    def _shared_dry(self, sharing: Sharing, args: Any, kwargs: Any, rows: int) -> DryRun:
        """Follow a forward of layers that ranks share, and prove their plan.

        Raises:
            Unproven, CantFollow: see there.
        """
        if rows % sharing.num_data:
            raise CantFollow(f"a batch of {rows} rows can't be split over {sharing.num_data} ranks")
        found = self._dry(args, kwargs, rows, self._runner_of(sharing.num_data))
        whole = (*self._asked.replicate, *(each.path for each in found.findings))
        sharing.try_plan(args, kwargs, rows, whole)
        return sharing.dry(found)

    def _shared_ways(self, sharing: Sharing, dry: DryRun | None) -> list[Candidate]:
        facts = sharing.facts(self._facts, self._groups)
        return shared_candidates(facts, dry, self._asked.checkpoint, sharing)

    def _choose(self) -> Candidate:
        asked = self._asked.strategy
        if self._asked.shares:
            wanted = [
                w for w in self._ways if asked in ("auto", "tp") or w.strategy == asked.removesuffix("+tp")
            ]
            wanted = [w for w in wanted if w.reshards] if asked == "fsdp+tp" else wanted
            if not wanted:
                raise MeshUsageError(
                    f"strategy={asked!r} splits the batch over a second axis of the mesh, and this one has "
                    "none: strategy='tp', or Mesh(shape=(2, 2), mesh_dim_names=('dp', 'tp'))"
                )
            return choose(wanted)
        if asked == "auto":
            return choose(self._ways)
        fitting = [w for w in self._ways if w.strategy == asked and w.reshards]
        if not fitting:
            raise MeshUsageError(
                f"strategy={asked!r} replicates over the first axis of a mesh, or over hosts, "
                f"and shards over the rest; this mesh has one axis of {self._facts.num_ranks} on "
                f"{self._facts.num_hosts}: Mesh(shape=(2, {max(2, self._facts.num_ranks // 2)})) has two, "
                "strategy='fsdp' shards over all ranks"
            )
        return next(
            (w for w in fitting if w.fits), fitting[-1] if self._asked.checkpoint is None else fitting[0]
        )

    def _grid_for(self, mesh: Any) -> Grid:
        given = grid_of(mesh)
        engine = given.engine
        if self._sharing is not None:
            shape = (self._sharing.num_parts, self._sharing.num_data)
            return engine.grid(shape, ("model", "data"), self._sharing.ranks)  # type: ignore[no-any-return]
        if self._taken.strategy == "hsdp":
            copies = self._taken.num_replicas
            return engine.grid((copies, self._num_ranks // copies), ("replicas", "shards"))  # type: ignore[no-any-return]
        if given.shape == (self._num_ranks,):
            return given
        return engine.grid((self._num_ranks,), ("data",))  # type: ignore[no-any-return]

    def _layout(self, parameter: nn.Parameter) -> Placements:
        """Return the layout of a parameter on the ranks."""
        is_whole = self._taken.strategy == "ddp" or self._is_apart(parameter)
        data = Replicate() if is_whole else Shard(0)
        if self._sharing is not None:
            dim = self._dims.get(id(parameter))
            return (Replicate() if dim is None else Shard(dim)), data
        return (*self._grid.replicated[:-1], data)

    def over(self, layout: Any) -> Placements:
        """Return the layout on all axes of what lies so over those of the batch."""
        if self._sharing is not None:
            return Replicate(), layout
        return (layout,) * len(self._grid.shape)

    def explanation(self) -> Explanation:
        """Return the explanation of the module's strategy."""
        hooked = self._watched.hooked()
        return Explanation(
            self._facts,
            tuple(self._ways),
            self._taken,
            self._asked.strategy != "auto" or self._asked.shares,
            self._groups,
            self._last,
            self._apart(),
            self._ties,
            f"{hooked} has hooks of this program, which need its layers here" if hooked else self._slow,
            self._possible,
        )

    def _apart(self) -> tuple[str, ...]:
        if self._taken.strategy == "ddp":
            return ()
        return tuple(name for name, each in self._skeleton.named_parameters() if self._is_apart(each))

    def _is_apart(self, parameter: nn.Parameter) -> bool:
        """Say whether fully_shard can't split a parameter: it takes one dtype for those of a layer."""
        return bool(parameter.dim() == 0 or parameter.dtype != self._dtype)

    # --- the dry run

    def _dry(self, args: Any, kwargs: Any, rows: int, runner: DryRunner) -> DryRun:
        is_auto = self._asked.strategy == "auto"
        try:
            return runner.run(args, kwargs, rows, finds=is_auto)
        except LocalMismatch as found:
            kind = type(self._module.get_submodule(found.path)).__name__
            raise mismatch_error(found, kind, rows, runner.num_ranks) from found.error
        except LooksAcross as found:
            raise across_error(found.finding, runner.num_ranks) from None

    # --- calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return self._called(args, kwargs)
        # there, torch doesn't take operations apart, and what is made can't be used in training
        with torch.inference_mode(False), torch.no_grad():
            return self._called(args, kwargs)

    def _called(self, args: Any, kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        rows = _rows(leaves)
        parameters = self._see_changes()
        is_split = rows % self._num_data == 0 and not self._watched.hooked()
        trained = tuple(each.requires_grad for each in parameters)
        dry = self._known_dry(args, kwargs, leaves, structure, rows, trained) if is_split else None
        leaves = [self._given(each, rows) for each in leaves]
        if dry is None:
            args, kwargs = pytree.tree_unflatten(leaves, structure)
            result = type(self.made).forward(self.made, *args, **kwargs)
            self._watched.ran_here()
            return result
        return self._run(dry, leaves, structure, parameters)

    def _see_changes(self) -> list[nn.Parameter]:
        """Have the module be sent to the ranks once more, if it was changed here; return its parameters."""
        parameters = self._watched.parameters()
        self._watched.check(parameters)
        if self._watched.was_changed(parameters):
            self._watched.change(self._skeleton)
            self._known.clear()
            self._taking.clear()
            self._built = self._with_numbers(self._watched.numbers)
        return parameters

    def _with_numbers(self, numbers: dict[int, dict[str, Any]]) -> tuple[Tensor, ParallelSpec] | None:
        """Return the module on the ranks with other attributes; None if it has to be built again. It's
        another tensor then: a recording that has used the module so far doesn't go on with it.
        """
        built = self._built
        if not numbers or built is None or built[0].dropped or self._sharing is not None:
            return None  # ranks that share layers have other numbers of heads
        sent = torch.frombuffer(bytearray(to_bytes(encode(numbers, "attributes"))), dtype=torch.uint8)
        engine = self._grid.engine
        holes, tensors = (Hole(0), Hole(1)), [built[0], engine.put(sent, self._grid, None)]
        return engine.own("own.module_with", holes, tensors, self.unknown), built[1]

    def _known_dry(
        self, args: Any, kwargs: Any, leaves: Any, structure: Any, rows: int, trained: tuple[bool, ...]
    ) -> DryRun | None:
        """Return the dry run of a call; None if the call has to run operation by operation."""
        kept = next((x for x in leaves if not isinstance(x, torch.Tensor) and not is_constant(x)), None)
        if kept is not None:  # ranks would change copies of it
            self._slow = f"{CANT_FOLLOW}: it gets a {type(kept).__name__}, which it may change"
            return None
        key = (structure, self._flags(), trained, torch.is_grad_enabled(), *map(_key_of, leaves))
        if key in self._known:
            return self._known[key]
        try:
            _check_sent(structure)
            with self._watched.as_now(self._module):
                found = self._followed(args, kwargs, rows)
        except CantFollow as error:
            self._slow = f"{CANT_FOLLOW}: {error}"
            found = None
        except Unproven as error:
            if self._built is None and self._sharing is not None and self._asked.shares:
                raise self._sharing.error(error) from None
            self._slow = f"the plan for layers that ranks share isn't right for this forward: {error}"
            found = None
        self._known[key] = found
        return found

    def _followed(self, args: Any, kwargs: Any, rows: int) -> DryRun | None:
        """Follow a forward; the costs of what is taken are those of the last one."""
        if self._sharing is not None:
            found = self._shared_dry(self._sharing, args, kwargs, rows)
            new = self._shared_ways(self._sharing, found)
        else:
            found = self._dry(args, kwargs, rows, self._runner)
            new = candidates(self._facts, found, self._asked.checkpoint)
        ways = {way.name: way for way in [*self._ways, *new]}
        self._last, self._ways, self._taken = found, list(ways.values()), ways[self._taken.name]
        return found

    def _flags(self) -> tuple[bool, ...]:
        return tuple(layer.training for layer in self._watched.layers.values())

    def _given(self, value: Any, rows: int) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dim = row_dim(value, rows) if rows and rows % self._num_data == 0 else None
        layout = self._grid.replicated if dim is None else self.over(Shard(dim))
        if not isinstance(value, Tensor):
            return brought(value, self._grid, layout)
        if value.mesh_meta.grid is not self._grid:
            if not can_regrid([value.mesh_meta], self._grid):
                return brought(value.full(), self._grid, layout)
            value = Regrid.apply(value, self._grid, layout)
        return relaid(value, layout)

    def _run(self, dry: DryRun, leaves: list[Any], structure: Any, parameters: list[nn.Parameter]) -> Any:
        module = self._on_ranks(dry, parameters)
        taking = [(n, parameters[n]) for n in self._taking[id(dry)]]
        grads = torch.is_grad_enabled() and any(out.wants_gradient for out in dry.outputs)
        call = Call(self, module, dry, leaves, structure, self._flags(), grads, taking)
        outputs = Run.apply(call, *call.inputs, *call.parameters) if grads else call.forward()
        for name in dry.assigned:
            self._bind_buffer(module, name)
        if dry.assigned:
            self._watched.has_buffers()
        parts = iter(outputs)
        return pytree.tree_unflatten([filled(each, parts) for each in dry.leaves], dry.structure)

    @property
    def grid(self) -> Grid:
        """The ranks that hold the module's tensors."""
        return self._grid

    @property
    def shares(self) -> bool:
        """Whether the first axis is that of ranks which share layers."""
        return self._sharing is not None

    @property
    def row_axes(self) -> tuple[str, ...]:
        """Names of the axes over which the rows of a batch are split, for `feed`."""
        return self._grid.names[1:] if self._sharing is not None else self._grid.names

    def tensor_grid(self) -> Grid:
        """Return the ranks that hold the module's batches, for `feed`."""
        return self._grid

    # --- the module on the ranks

    def _on_ranks(self, dry: DryRun, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Return the module on the ranks; it's built at the first forward, and again when a layer has to run
        differently.
        """
        built = self._built
        is_there = built is not None and not built[0].dropped  # dropped: lost with a rank
        if built is not None and is_there and id(dry) in self._taking:
            return built[0]
        trained = [name for name, each in zip(self._names, parameters, strict=True) if each.requires_grad]
        spec = self._spec(dry, frozenset(trained))
        is_right = built is not None and is_there and _is_covered(spec, built[1])
        if built is None or not is_right or (dry.has_objects and spec.whole != built[1].whole):
            built = self._built = self._build(spec), spec
            self._taking.clear()
        taking = dry.used.intersection(trained)
        self._taking[id(dry)] = [n for n, name in enumerate(self._names) if name in taking]
        return built[0]

    def _spec(self, dry: DryRun, trained: frozenset[str]) -> ParallelSpec:
        before = self._built[1] if self._built else None
        whole = tuple(dict.fromkeys([
            *self._asked.replicate, *(f.path for f in dry.findings),
            *(before.whole if before and not dry.has_objects else ()),
        ]))  # fmt: skip
        whole = tuple(p for p in whole if not any(p != q and (not q or p.startswith(f"{q}.")) for q in whole))
        unused = torch.is_grad_enabled() and any(n not in dry.used for n in trained)
        return ParallelSpec(
            module=self._skeleton, strategy="ddp" if self._taken.strategy == "ddp" else "fsdp",
            groups=self._groups, reshards=self._taken.reshards, whole=whole,
            checkpointed=self._groups if self._taken.checkpoints else (), apart=self._apart(),
            precision=self._asked.precision, compiles=self._asked.compiles,
            has_unused=unused or (before is not None and before.has_unused),
            trained=trained, counts_rows=dry.counts_rows or (before is not None and before.counts_rows),
            seed=torch.initial_seed() % (1 << 31),
            tensor=self._plan(before),
        )  # fmt: skip

    def _plan(self, before: ParallelSpec | None) -> TensorPlan | None:
        if self._sharing is None or self._sharing.proof is None:
            return None
        plan = self._sharing.proof.plan
        has_drawn = before is not None and before.tensor is not None and before.tensor.draws
        return replace(plan, draws=plan.draws or has_drawn)

    def _build(self, spec: ParallelSpec) -> Tensor:
        engine = self._grid.engine
        ours = list(self.made.parameters())
        skeleton = copy.deepcopy(self._skeleton)
        for parameter, each in zip(skeleton.parameters(), ours, strict=True):
            parameter.requires_grad_(each.requires_grad)
        self._copy_buffers(skeleton)
        sent = replace(spec, module=skeleton)  # as bytes: ranks keep plans for longer than modules
        holes = [Hole(n) for n in range(len(ours))]
        with parametrized_sent(skeleton):
            module: Tensor = engine.own(
                "own.module",
                (to_bytes(encode(sent, "the module")), self._grid.number, holes),
                [p.detach() for p in ours],
                self.unknown,
            )
        for number, each in enumerate(ours):
            _rebind(each, engine.own("own.module_parameter", (Hole(0), number), [module], each.mesh_meta))
        for name, _ in self.made.named_buffers():
            self._bind_buffer(module, name)
        self._watched.was_sent(ours)
        return module

    def _copy_buffers(self, skeleton: nn.Module) -> None:
        """Give a copy of the module the values of its buffers, which a program may have replaced."""
        like = dict(zip(self._watched.layers.values(), skeleton.modules(), strict=True))
        values: dict[int, torch.Tensor] = {}
        for layer, name in self._watched.buffers:
            mine = own_buffers(layer)[name]
            if id(mine) not in values:
                values[id(mine)] = mine.full() if isinstance(mine, Tensor) else mine.clone()
            own_buffers(like[layer])[name] = values[id(mine)]
            if not isinstance(mine, Tensor) or mine.placements != self._grid.replicated:
                own_buffers(layer)[name] = brought(values[id(mine)], self._grid, self._grid.replicated)

    def _bind_buffer(self, module: Tensor, name: str) -> None:
        """Have a buffer in this program be that of the module on the ranks."""
        mine: Any = self.made.get_buffer(name)
        _rebind(mine, self._grid.engine.own("own.module_buffer", (Hole(0), name), [module], mine.mesh_meta))

    def revive(self) -> None:
        """Put the module on the healed mesh again, without its values."""
        grid = self._grid_for(self._mesh)
        if self._num_heals == grid.engine.num_heals:
            return
        self._grid, self._built, self._num_heals = grid, None, grid.engine.num_heals
        for each in [*self.made.parameters(), *self.made.buffers()]:
            old = each.mesh_meta
            meta = intern(old.size, contiguous(old.size), old.dtype, grid, old.placements)
            args = (tuple(old.size), old.dtype, grid.number, old.placements)
            _rebind(each, grid.engine.own("own.zeros", args, [], meta))
            each.grad = None
        self._watched.was_placed()

    @property
    def unknown(self) -> Any:
        """Return the metadata for a value that isn't a tensor."""
        return intern((), (), torch.float32, self._grid, None)

    def __deepcopy__(self, memo: Any) -> Any:
        raise MeshUsageError(
            "a module of the mesh can't be copied: copy.deepcopy the module before parallelize"
        )

    def __reduce__(self) -> Any:
        raise MeshUsageError("a module of the mesh isn't saved as a whole: save model.state_dict()")


def _rebind(old: Any, new: Tensor) -> None:
    old.mesh_meta, old.mesh_handle = new.mesh_meta, new.mesh_handle


def _check_sent(structure: Any) -> None:
    """Check that the structure of the arguments can be sent to ranks.

    Raises:
        CantFollow: if it can't; the error names the container.
    """
    try:
        pytree.treespec_dumps(structure)
    except (NotImplementedError, TypeError) as error:
        raise CantFollow(f"arguments in a container that can't be sent: {error}") from error


def _replicas(shape: Sequence[int], num_hosts: int, strategy: str) -> int:
    """Return the number of copies that "hsdp" keeps. If the user has asked for "hsdp" on a mesh with several
    axes, it's the size of the first one; otherwise the number of hosts, so that gathers stay within a host.

    >>> _replicas((4, 2), 1, "hsdp"), _replicas((8,), 2, "hsdp"), _replicas((4, 2), 1, "auto")
    (4, 2, 1)
    """
    axes = [size for size in shape if size > 1]
    return axes[0] if strategy == "hsdp" and len(axes) > 1 else num_hosts


def _is_covered(wanted: ParallelSpec, built: ParallelSpec) -> bool:
    is_alike = wanted.tensor == built.tensor and wanted.trained == built.trained
    needs = wanted.has_unused <= built.has_unused and wanted.counts_rows <= built.counts_rows
    return set(wanted.whole) <= set(built.whole) and needs and is_alike


def _rows(leaves: Sequence[Any]) -> int:
    """Return the size of the batch, which is the first tensor's first dimension; 1 if there is no tensor."""
    return next((x.shape[0] for x in leaves if isinstance(x, torch.Tensor) and x.dim()), 1)


def _key_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        layout = value.placements if isinstance(value, Tensor) else None
        return tuple(value.shape), tuple(value.stride()), value.dtype, value.requires_grad, layout
    return type(value), value


def _skeleton(module: nn.Module) -> nn.Module:
    """Return a copy of a module without the values of parameters; buffers keep theirs."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in module.parameters()
    }
    try:
        return copy.deepcopy(module, memo)
    except MeshUsageError:
        raise
    except Exception as error:
        where = find_unpicklable(module, "the module") or "the module"
        raise MeshUsageError(
            f"{where}: {error}. A module is copied to the ranks: take open files, locks and the like out "
            "of it"
        ) from error


def _groups(module: nn.Module) -> tuple[str, ...]:
    """Return the paths of repeated layers: those of one class in a ModuleList, which users of FSDP wrap by
    hand.
    """
    shared = _shared(module)
    found: list[str] = []
    for path, layer in module.named_modules():
        if not isinstance(layer, nn.ModuleList) or any(path.startswith(f"{each}.") for each in found):
            continue
        children = [(f"{path}.{name}" if path else name, child) for name, child in layer.named_children()]
        alike = len(children) > 1 and len({type(child) for _, child in children}) == 1
        if alike and all(list(c.parameters()) for _, c in children):
            found += [p for p, child in children if not any(id(x) in shared for x in child.parameters())]
    return tuple(found)


def _most_common_dtype(module: nn.Module) -> torch.dtype | None:
    """Return the dtype that most numbers of a module have."""
    sizes: dict[torch.dtype, int] = {}
    for each in module.parameters():
        sizes[each.dtype] = sizes.get(each.dtype, 0) + each.numel()
    return max(sizes, key=lambda dtype: sizes[dtype], default=None)


def _shared(module: nn.Module) -> set[int]:
    """Return the ids of parameters that several layers share."""
    seen: set[int] = set()
    again: set[int] = set()
    for layer in module.modules():
        for each in layer.parameters(recurse=False):
            (again if id(each) in seen else seen).add(id(each))
    return again
