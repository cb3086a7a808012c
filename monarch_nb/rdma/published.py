"""Published models: `publish` describes where each tensor's shards are, `load_into` reads the parts that a
rank needs.

The two sides may be sharded differently, over meshes of different shapes: each reader takes, for each of its
shards, just the parts that overlap, straight out of the owners' memory into its own. Where several ranks have
the same part, a near one is read, and different readers read different ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from monarch_nb._wire.loaded import loaded
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.rdma import versions
from monarch_nb.rdma.box import Box
from monarch_nb.rdma.buffer import DEFAULT_TIMEOUT_S, RDMABuffer, deadline_of, handle_of
from monarch_nb.rdma.data_plane import data_plane
from monarch_nb.rdma.memory import dtype_name, memory_of
from monarch_nb.rdma.path import READ, Job
from monarch_nb.rdma.staging import queued_work
from monarch_nb.rdma.transfer import Receipt


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a tensor in the memory of one rank."""

    box: Box
    buffer: RDMABuffer


@dataclass(frozen=True)
class Tensor:
    """A tensor of a published model: its whole shape, its dtype, and the shards that are known."""

    shape: tuple[int, ...]
    dtype: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Published:
    """The location of a published model's tensors, as a handle. Travels in messages; `join` puts those of
    several ranks together.

    Attributes:
        tensors: by name, as in the state dict; nested names are joined by dots.
        values: what isn't a tensor, by name.
        counters: the version that each publishing rank holds; empty without versions.

    Example:
        >>> published = trainer.publish.call().get()         # doctest: +SKIP
        >>> generator.load.call(published).get()             # doctest: +SKIP
    """

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]
    counters: tuple[RDMABuffer, ...] = ()

    @classmethod
    def join(cls, parts: Iterable[Published]) -> Published:
        """Return one handle of all parts of a model that several ranks have published.

        Raises:
            MeshUsageError: if they disagree on a tensor's shape or dtype.
        """
        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {}
        counters: list[RDMABuffer] = []
        for part in parts:
            values.update(part.values)
            counters += part.counters
            for name, new in part.tensors.items():
                known = tensors.get(name)
                if known is not None and (known.shape, known.dtype) != (new.shape, new.dtype):
                    raise MeshUsageError(
                        f"{name} was published as {_kind(known)} and, by "
                        f"{new.shards[0].buffer.owner}, as {_kind(new)}"
                    )
                tensors[name] = new if known is None else replace(known, shards=known.shards + new.shards)
        return cls(tensors, values, tuple(counters))

    def updating(self, version: int | None = None) -> AbstractContextManager[int]:
        """Return a context in which the tensors are changed, on each rank that has published them. Readers
        get all of the old version or all of the new one; a reader that comes meanwhile waits. The block
        starts later, by at most 10 s, if a reader that couldn't finish between two versions asks for time.

        If the block raises, the tensors are no valid version: readers wait until the next block is complete.

        Args:
            version: the number of the new version; by default the last one plus 1.

        Raises:
            MeshUsageError: if this process hasn't published the model, or has published it without a version.

        Example:
            >>> with published.updating() as version:            # doctest: +SKIP
            ...     optimizer.step()
        """
        return versions.writing(self.counters, version)

    def wait(self, min_version: int | None = None, timeout: float | None = DEFAULT_TIMEOUT_S) -> int:
        """Wait for a version, and return the one that all publishers hold then.

        Raises:
            MeshUsageError: if it was published without versions.
            TransferTimeout: if it takes longer than `timeout` seconds.

        Example:
            >>> newest = published.wait()                        # doctest: +SKIP
            >>> published.wait(newest + 1, timeout=600)          # doctest: +SKIP
        """
        return versions.settled(self._versioned(), min_version, deadline_of(timeout))

    def _versioned(self) -> tuple[RDMABuffer, ...]:
        if not self.counters:
            raise MeshUsageError("it was published without a version: publish(state, version=0)")
        return self.counters

    @property
    def num_bytes(self) -> int:
        """The number of bytes of all shards; a shard that several ranks hold counts once for each."""
        return sum(shard.buffer.size() for tensor in self.tensors.values() for shard in tensor.shards)

    def drop(self) -> None:
        """End the registrations of all shards."""
        ends = [shard.buffer.drop() for tensor in self.tensors.values() for shard in tensor.shards]
        ends += [counter.drop() for counter in self.counters]
        versions.forget(self.counters)
        for end in ends:
            end.get()

    def __repr__(self) -> str:
        owners = {s.buffer.owner for t in self.tensors.values() for s in t.shards}
        return (
            f"<Published {len(self.tensors)} tensors, {self.num_bytes:,} bytes, of {len(owners)} "
            f"rank{'s' * (len(owners) != 1)}>"
        )


def publish(state_dict: Mapping[str, Any], *, version: int | None = None) -> Published:
    """Publish a model for other processes to read, on each rank that has a part of it. Registers the tensors,
    and copies nothing.

    Tensors that are trained further in place needn't be published again.

    Args:
        state_dict: names to tensors, DTensors (each rank publishes its shard), or further dicts and lists of
            these.
        version: the version's number. Tensors may then be changed within `updating()` only, and readers never
            get a mix of two versions; without it, they may read the result of half a step.

    Raises:
        MeshUsageError: if a tensor can't be published; it names the tensor.

    Example:
        >>> published = publish(model.state_dict(), version=0)   # doctest: +SKIP
        >>> with published.updating():                           # doctest: +SKIP
        ...     optimizer.step()
    """
    tensors, values = {}, {}
    for name, value in _leaves(state_dict):
        if _is_tensor(value):
            local, box, shape = _placed(value, name)
            shards = () if box.is_empty else (Shard(box, RDMABuffer(memory_of(local, name))),)
            tensors[name] = Tensor(shape, dtype_name(value), shards)
        else:
            values[name] = value
    if not tensors:
        raise MeshUsageError("publish() wants a state dict with tensors in it, such as model.state_dict()")
    return Published(tensors, values, () if version is None else (versions.new_counter(version),))


def load_into(
    state_dict: Mapping[str, Any], source: Published | Iterable[Published],
    timeout: float | None = DEFAULT_TIMEOUT_S, *, strict: bool = True, min_version: int | None = None,
) -> Receipt:  # fmt: skip
    """Read a published model into the tensors of `state_dict`, in place; each rank reads only the parts that
    it holds.

    Args:
        state_dict: of a model with the same names and full shapes, sharded in any way. Dtypes are converted;
            values that aren't tensors are assigned.
        source: the result of `publish` on one rank, or those of several (a list, or the ValueMesh of a call).
        timeout: seconds that the whole read may take; None: no limit.
        strict: whether a tensor that wasn't published is an error; otherwise it's left unchanged.
        min_version: wait for this version or a newer one.

    Returns:
        a receipt for the bytes that were moved, with their version. With versions, all tensors are
        of the same one: those that change meanwhile are read again. (Nothing else should use these tensors
        until then.)

    Raises:
        MeshUsageError: if a tensor wasn't published, has another shape, or misses a part (it's named);
            or if `min_version` is given for a model that was published without versions.
        BufferGone, TransferTimeout, RDMAError: as of `RDMABuffer.read_into`; the tensors then contain
            a mix of old and new parts.

    Example:
        >>> load_into(model.state_dict(), published)             # doctest: +SKIP
        Receipt(op='read', path='shm', ...)
    """
    published = source if isinstance(source, Published) else Published.join(_each(source))
    deadline = deadline_of(timeout)
    counters = published._versioned() if min_version is not None else published.counters
    turn = versions.Turn(counters, deadline)
    try:
        while True:
            version = turn.settled(min_version) if counters else None
            jobs, conversions = _plan(state_dict, published, deadline, strict=strict)
            receipt = data_plane().submit(jobs).get() if jobs else Receipt(READ, "local", 0, 0.0)
            if version is None or turn.still(version):
                break
    finally:
        turn.end_turn()
    for target, fresh in conversions:
        target.copy_(fresh)
    _set_values(state_dict, published)
    return receipt if version is None else replace(receipt, version=version)


def _plan(
    state_dict: Mapping[str, Any], source: Published, deadline: float | None, *, strict: bool
) -> tuple[list[Job], list[tuple[Any, Any]]]:
    """Return the reads to run, and the conversions after them: pairs of a target and the array that was read
    for it.
    """
    jobs: list[Job] = []
    conversions: list[tuple[Any, Any]] = []
    for name, value in _leaves(state_dict):
        found = source.tensors.get(name) if _is_tensor(value) else None
        if found is not None:
            jobs += _jobs_for(name, value, found, deadline, conversions)
        elif strict and _is_tensor(value):
            raise MeshUsageError(
                f"{name} was not published; there are {_some(source.tensors)}. strict=False "
                "leaves it as it is"
            )
    return jobs, conversions


def _set_values(state_dict: Mapping[str, Any], source: Published) -> None:
    for name, value in list(_leaves(state_dict)):
        if not _is_tensor(value) and name in source.values:
            _set(state_dict, name, source.values[name])


def _each(source: Iterable[Any]) -> Iterator[Published]:
    for one in source.values() if hasattr(source, "values") else source:
        if not isinstance(one, Published):
            raise MeshUsageError(f"expected what publish() returns, not a {type(one).__name__}")
        yield one


def _jobs_for(
    name: str, value: Any, source: Tensor, deadline: float | None, conversions: list[tuple[Any, Any]]
) -> list[Job]:
    import torch

    local, box, shape = _placed(value, name)
    if shape != source.shape:
        raise MeshUsageError(
            f"{name} is {_shape(shape)} here and was published as {_shape(source.shape)}: the models differ"
        )
    if box.is_empty:
        return []
    target = local.detach()
    if dtype_name(value) != source.dtype:
        fresh = torch.empty(box.shape, dtype=getattr(torch, source.dtype))
        conversions.append((target, fresh))
        target = fresh
    memory = memory_of(target, name)
    after = queued_work(memory)
    return [
        Job(
            READ,
            handle_of(shard.buffer).part(part.within(shard.box)),
            memory.part(part.within(box)),
            deadline,
            after=after,
        )
        for shard, part in _cover(name, box, source)
    ]


def _cover(name: str, box: Box, source: Tensor) -> Iterator[tuple[Shard, Box]]:
    """Yield shards that together cover `box`, each with the part of it to read."""
    missing = [box]
    for shard in sorted(source.shards, key=_distance):
        if not missing:
            return
        left = []
        for want in missing:
            part = want.overlap(shard.box)
            if part.is_empty:
                left.append(want)
            else:
                yield shard, part
                left += want.without(part)
        missing = left
    if missing:
        raise MeshUsageError(
            f"{name}: the part from {missing[0].start}, {_shape(missing[0].shape)}, was published by "
            "no rank: give load_into the results of publish() on all ranks"
        )


def _distance(shard: Shard) -> tuple[int, int]:
    """Return a sort key that puts near shards first; among equally near ones, each reader prefers a different
    one.
    """
    handle = handle_of(shard.buffer)
    ours = data_plane().owner
    far = 0 if handle.is_ours else 1 if handle.is_near else 2
    return far, (handle.owner.proc ^ ours.proc) & 0xFFFF


# --- tensors in state dicts


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        items: Iterable[tuple[Any, Any]] = node.items()
    elif isinstance(node, list | tuple):
        items = enumerate(node)
    else:
        yield path, node
        return
    for key, child in items:
        yield from _leaves(child, f"{path}.{key}" if path else str(key))


def _set(node: Any, name: str, value: Any, path: str = "") -> None:
    """Set a value that isn't a tensor; a value in a tuple can't be set, and stays."""
    items: Iterable[tuple[Any, Any]] = (
        list(node.items()) if isinstance(node, Mapping) else list(enumerate(node))
    )
    for key, child in items:
        where = f"{path}.{key}" if path else str(key)
        if where == name and not isinstance(node, tuple):
            node[key] = value
        elif name.startswith(where + ".") and isinstance(child, Mapping | list | tuple):
            _set(child, name, value, where)


def _is_tensor(value: Any) -> bool:

    torch = loaded("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _placed(value: Any, name: str) -> tuple[Any, Box, tuple[int, ...]]:
    """Return a tensor's local part, the box of that part in the whole tensor, and the whole tensor's
    shape.
    """
    shape = tuple(value.shape)
    if not hasattr(value, "placements"):
        return value, Box((0,) * len(shape), shape), shape
    if any(p.is_partial() for p in value.placements):
        raise MeshUsageError(f"{name} is a DTensor with partial sums: redistribute() it first")
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local_shape, start = compute_local_shape_and_global_offset(
        value.shape, value.device_mesh, value.placements
    )
    return value.to_local(), Box(tuple(start), tuple(local_shape)), shape


def _kind(tensor: Tensor) -> str:
    return f"{_shape(tensor.shape)} {tensor.dtype}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _some(names: Mapping[str, Any], most: int = 4) -> str:
    shown = ", ".join(list(names)[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
