"""A dry run as one rank sees it, on its part of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from monarch_nb._parallel.dry.following import Following, Shared, Step, is_bookkeeping, scalars_of
from monarch_nb._parallel.dry.outcome import CantFollow, LocalMismatch, Shape
from monarch_nb._parallel.rules import row_dim
from monarch_nb._rank.tensor.losses import SUM
from monarch_nb._rank.tensor.own_losses import means_by
from monarch_nb._tensor.place import Place, users_frame


class LocalRun(Following):
    """The dispatch mode that follows the forward as one rank sees it."""

    def __init__(self, shared: Shared, whole: Sequence[str], rows: int) -> None:
        super().__init__(shared, whole, rows)
        self.steps: list[Step] = []
        self.num_flops = 0
        self.saved_bytes = 0
        self.gathered: dict[str, int] = {}
        self.strides: dict[str, list[list[tuple[int, ...]]]] = {}
        """Of results of layers that rules can't follow, call by call."""
        self._seen: set[int] = set()
        self._kept: list[Any] = []
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    @contextmanager
    def _around(self) -> Iterator[None]:
        with (
            super()._around(),
            means_by(self._loss),
            self._fake,
            torch.autograd.graph.saved_tensors_hooks(self._save, lambda x: x),
        ):
            yield

    def _loss(self, by_torch: Any, given: dict[str, Any]) -> Any:
        return by_torch(**{**given, "reduction": SUM})  # the same operations as `WholeRun`

    def _save(self, value: torch.Tensor) -> None:
        """Count a tensor that a backward would need. There is none, so nothing is kept: a tensor in a history
        of its own would stay for ever.
        """
        storage = value.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self._kept.append(storage)
            if not self.name_of(value):
                self.saved_bytes += storage.nbytes()

    def leave(self, path: str, output: Any) -> Any:
        """Record how the results of a layer lie in memory."""
        if path in self._shared.fine:
            results = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor)]
            self.strides.setdefault(path, []).append([x.stride() for x in results])
        return output

    def value(self, plain: torch.Tensor) -> torch.Tensor:
        with self._fake:
            return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device="cpu")

    def given(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made, dim = self.value(value), row_dim(value, self._rows)
        if dim is None:
            return made
        with self._fake:
            size = list(value.shape)
            size[dim] //= self._shared.num_ranks
            return torch.empty(size, dtype=value.dtype, device="cpu")

    def gather(self, value: Any) -> Any:
        if not self._is_batch(value, self._rows // self._shared.num_ranks):
            return value
        more = value.numel() * (self._shared.num_ranks - 1) * value.element_size()
        self.gathered[self.path] = self.gathered.get(self.path, 0) + more
        return _Gather.apply(value, self._shared.num_ranks)

    def own(self, value: Any) -> Any:
        rows = self._rows // self._shared.num_ranks
        if not self._is_batch(value, self._rows):
            return value
        return value.narrow(0, 0, rows).clone()  # of a view that is changed in place, torch makes another one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_unseen:
            return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except (LocalMismatch, CantFollow):
            raise
        except Exception as error:
            raise self._mismatch(func, args, kwargs, error) from error
        counter = flop_registry.get(getattr(func, "overloadpacket", None))
        if counter is not None:
            self.num_flops += counter(*args, **kwargs, out_val=result)
        if not is_bookkeeping(func):
            sizes = tuple(tuple(x.shape) for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor))
            self.steps.append(Step(func, scalars_of(args, kwargs), sizes))
        return result

    def _mismatch(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Exception:
        if type(error).__name__.startswith(("DataDependent", "DynamicOutput")):
            place = Place(*users_frame(), "")
            return CantFollow(f"{func} needs numbers that only ranks have ({place})")
        inputs = [
            (self.name_of(x), Shape(tuple(x.shape), tuple(x.stride()), x.dtype))
            for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)
        ]  # fmt: skip
        return LocalMismatch(self.path, str(func), Place(*users_frame(), ""), inputs, error)


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function that stands for gathering a batch."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, num: int) -> Any:
        return value.new_empty((value.shape[0] * num, *value.shape[1:]))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError
