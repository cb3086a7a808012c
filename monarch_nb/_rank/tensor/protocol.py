"""Types of the messages about tensors between the controller and the ranks.

The command stream is an array of u32. A command is `plan, input slots ..., scalars ..., output slots ...`:
how many there are of each is known from the plan. A scalar is the eight bytes of a double: two words. Plan
`DROP` is followed by a count and so many slots.

The n-th command of a message has the sequence number of the message plus n; a DROP counts as a command, too.

A message may replay commands that were recorded before: its words then have the recording's number, slots and
seeds in their place. A rank inserts the recorded commands there before it begins, and they count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

FetchFrom = Literal["first", "each", "describe"]
"""One rank, each rank, or each rank without the data of tensors."""
DROP = 0
"""Number of the plan whose command empties slots."""
FIRST_PLAN = 1
SINGLE = -1
"""In `Definition.outputs`: the result itself, not a part of it."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A placeholder in a template of arguments: the value in the n-th input slot."""

    index: int


@dataclass(frozen=True, slots=True)
class ScalarHole:
    """A placeholder in a template of arguments: the n-th scalar beside the command."""

    index: int


@dataclass(frozen=True, slots=True)
class GroupHole:
    """A placeholder in a template of arguments: the process group of this rank along an axis of a device
    mesh.
    """

    grid: int
    axis: int


@dataclass(frozen=True, slots=True)
class GridDefinition:
    """A device mesh.

    Attributes:
        number: number by which plans refer to it.
        shape: sizes of its axes.
        names: names of its axes.
        ranks: rank at each point, the last axis fastest.
    """

    number: int
    shape: tuple[int, ...]
    names: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """A plan: one operation with all of its arguments but tensors, and floats that change.

    Attributes:
        plan: its number.
        op: name of the operation: `aten.mm.default`, or `own.put` and others of the executor's.
        args, kwargs: a template; `Hole` and `ScalarHole` stand for what the command brings.
        num_inputs, num_scalars: of a command.
        outputs: which parts of the result get a slot each.
        writes: inputs that are changed in place.
        grid: number of the device mesh; None for values of each rank's own.
        is_whole: the operation is done on whole tensors by every rank, and each keeps its part of the result.
        is_random: it draws random numbers; its last scalar is the seed.
        placements: of each output, for tensors over a device mesh.
        sums: for an operation that each rank does on its parts: inputs that are summed over ranks before,
            with the axes; None if ranks find that out.
        cuts: then, inputs of which a rank has more than it needs, and the layout of what it needs.
        metas: then, size, strides and dtype of each output.
        ranks: which ranks do it; () for all.
        module: Python module that registers the operation; empty for torch's own.
        moved: inputs that are laid out anew before, and how; of others ranks find that out.
    """

    plan: int
    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    num_inputs: int = 0
    num_scalars: int = 0
    outputs: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    grid: int | None = None
    is_whole: bool = False
    is_random: bool = False
    placements: tuple[Any, ...] = ()
    sums: tuple[tuple[int, tuple[int, ...]], ...] | None = None
    metas: tuple[tuple[tuple[int, ...], tuple[int, ...], Any], ...] = ()
    ranks: tuple[int, ...] = ()
    module: str = ""
    moved: tuple[tuple[int, tuple[Any, ...]], ...] = ()
    cuts: tuple[tuple[int, tuple[Any, ...]], ...] = ()

    @property
    def num_words(self) -> int:
        """The length of a command."""
        return 1 + self.num_inputs + 2 * self.num_scalars + len(self.outputs)


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """Commands that are executed again with other slots and seeds.

    Attributes:
        number: number by which messages refer to them.
        words: the commands.
        num_slots: number of slots that a replay brings.
        positions: positions of words that are slots of a replay, as u32.
        which: for each of them, the index of the slot in the replay, as u32.
        seeds: positions of the seeds of commands that draw random numbers.
        parcels: plain values that the commands take, in order.
    """

    number: int
    words: bytes
    num_slots: int
    positions: bytes
    which: bytes
    seeds: tuple[int, ...] = ()
    parcels: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """One message of the stream.

    Attributes:
        first: sequence number of its first command.
        num_slots: how long the table must be.
        words: the commands; a replay is `number, slots ..., seeds ...`.
        grids, definitions, recorded: what is new in them.
        parcels: plain values that its commands take, in order.
        replays: for each replay its position in the words, and the number of parcels before it.
        forgotten: plans that no later command uses; `forgotten_parts`: recorded parts that no later message
            replays.
        number: of the message, from 1 on; 0: it isn't counted.
    """

    first: int
    num_slots: int
    words: bytes
    grids: tuple[GridDefinition, ...] = ()
    definitions: tuple[Definition, ...] = ()
    parcels: tuple[Any, ...] = ()
    recorded: tuple[RecordedPart, ...] = ()
    replays: tuple[tuple[int, int], ...] = ()
    forgotten: tuple[int, ...] = ()
    forgotten_parts: tuple[int, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a rank that can't continue, and waits for a decision.

    Attributes:
        rank: the reporting rank.
        seq: the command that failed; for a rank that was told to stop, its next command.
        op: operation of the command.
        kind: the exception's class; empty if it was only told to stop.
        message: the exception's text.
        traceback: of the rank, without this package's frames.
        epoch: of its process groups.
    """

    rank: int
    seq: int
    op: str
    kind: str = ""
    message: str = ""
    traceback: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class GoOn:
    """The decision to continue: all ranks failed at the same command, so that they are still in step."""

    seq: int


@dataclass(frozen=True, slots=True)
class Resume:
    """The decision to resume after ranks stopped at different commands; their process groups are gone.

    Attributes:
        cause: the command whose failure led to this.
        first: the first command whose results are lost on all ranks.
        until: the first command that all ranks execute again.
        epoch: of the process groups that are made anew.
        address: where they meet.
    """

    cause: int
    first: int
    until: int
    epoch: int
    address: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Reset:
    """The decision to stop: a rank was lost; all commands before the next begin are void. Values are kept
    until it's known which of them can be used on.
    """


Decision = GoOn | Resume | Reset


@dataclass(frozen=True, slots=True)
class Stopped:
    """The answer of a rank that was stopped because another one was lost.

    Attributes:
        seq: the first command that it hasn't done.
        versions: how often each value was changed in place, by slot. Views count the changes of their base.
        poisons: for slots whose computation has failed, that of which command.
        stale: slots whose values commands that weren't done would have changed.
    """

    seq: int
    versions: Mapping[int, int]
    poisons: Mapping[int, int]
    stale: frozenset[int]


@dataclass(frozen=True, slots=True)
class Copied:
    """A value that one rank gives to another that was started anew: how it lies in its memory.

    Attributes:
        memory: number of the memory that it lies in; views of one tensor lie in the same.
        size, stride, offset, dtype: of the part that the rank has.
        grid: number of the device mesh.
        placements: its layout there.
        whole_size, whole_stride: of the whole tensor.
        version: how often that memory was changed in place.
    """

    memory: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: Any
    grid: int
    placements: tuple[Any, ...]
    whole_size: tuple[int, ...]
    whole_stride: tuple[int, ...]
    version: int


@dataclass(frozen=True, slots=True)
class Offer:
    """The values that a rank can give, of those that it was asked for.

    Attributes:
        memories: how many bytes each piece of memory has.
        values: by slot; what isn't there can't be given.
    """

    memories: tuple[int, ...]
    values: Mapping[int, Copied]


@dataclass(frozen=True, slots=True)
class Gift:
    """A transfer of values from one rank to one that was started anew."""

    donor: int
    target: int
    offer: Offer


@dataclass(frozen=True, slots=True)
class Recovery:
    """The new start of all ranks, after some were lost and started anew.

    Attributes:
        epoch, address: of the process groups that are made anew, and where ranks meet.
        lost: the ranks that were started anew.
        first: number of the next command.
        num_slots: length of the table.
        kept: slots whose values are used on; all others are emptied.
        poisons: slots whose computation had failed before, and that of which command.
        grids, definitions: all that commands may refer to.
        gifts: what ranks that were started anew get from others, in this order.
    """

    epoch: int
    address: tuple[str, int]
    lost: tuple[int, ...]
    first: int
    num_slots: int
    kept: frozenset[int]
    poisons: Mapping[int, int]
    grids: tuple[GridDefinition, ...] = ()
    definitions: tuple[Definition, ...] = ()
    gifts: tuple[Gift, ...] = ()


@dataclass(frozen=True, slots=True)
class Poison:
    """The value in a table slot whose computation has failed.

    Attributes:
        seq: of the command that failed.
    """

    seq: int


@dataclass(frozen=True, slots=True)
class SplitLayer:
    """A layer that is split over the ranks of a line.

    Attributes:
        style: "colwise", "rowwise" and so on: see `tensor_parallel.STYLES`.
        dim: for a layer that every rank has whole: along which dimension its input comes in parts.
    """

    path: str
    style: str
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Divided:
    """An attribute of a layer with another value on ranks, such as the number of heads."""

    path: str
    attribute: str
    value: int


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """The split of a module's layers over the ranks of a line (tensor parallelism).

    Attributes:
        draws: whether the forward draws random numbers: ranks of a line draw the same ones.
    """

    layers: tuple[SplitLayer, ...]
    divided: tuple[Divided, ...] = ()
    draws: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class ParallelSpec:
    """The specification of a module on the ranks.

    Attributes:
        module: the module with its parameters on `meta`: their values are sent separately. Buffers are as
            they are.
        groups: layers whose parameters are gathered together, by path; the rest is one more group.
        reshards: whether gathered parameters are freed after the forward.
        whole: paths of layers that mix rows of the batch: each rank runs them on the whole batch.
        checkpointed: layers whose activations are recomputed for the backward.
        apart: names of parameters that can't be split; every rank has them.
        precision: the type in which layers compute, as in "bfloat16"; "" for that of the parameters.
        compiles: whether torch.compile is used.
        has_unused: whether there are parameters that don't contribute to the result.
        trained: names of parameters that want gradients.
        counts_rows: whether there is a loss that is the mean over rows that count: over those of all ranks.
        seed: of random numbers in layers of `whole`.
        tensor: how layers are split over the mesh's first axis; None: that axis is one of the batch's.
    """

    module: Any
    strategy: Literal["ddp", "fsdp"]
    groups: tuple[str, ...] = ()
    reshards: bool = True
    whole: tuple[str, ...] = ()
    checkpointed: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    precision: str = ""
    compiles: bool = False
    has_unused: bool = False
    trained: frozenset[str] = frozenset()
    counts_rows: bool = False
    seed: int = 0
    tensor: TensorPlan | None = None


class LayerError(RuntimeError):
    """The error of a layer that has raised; its text names the layer, the line and the error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Described:
    """A rank's description of a tensor whose shape only the rank knows.

    Attributes:
        size, stride, dtype: of the whole tensor.
        placements: its layout; None: each rank has a value of its own.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    placements: tuple[Any, ...] | None = None


NOT_BEGUN = -2
"""In `Fetched.failed`: this rank was restarted, and has no earlier values."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a fetch.

    Attributes:
        value: the fetched value; None on ranks that needn't send it.
        failed: the command whose failure prevents a value; -1 if there is a value.
    """

    value: Any = None
    failed: int = -1
