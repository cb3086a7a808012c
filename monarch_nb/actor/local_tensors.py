"""Refuses to make local tensors where a mesh is active. Imports torch: only `active` imports this, where
it's used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from monarch_nb._frames.owner import frames_from, is_of_package, module_of
from monarch_nb.exceptions import NoTensorEngine

_NOT_USERS = ("torch.", "pickle.", "cloudpickle.", "contextlib.")


class NoLocalTensors(TorchFunctionMode):  # type: ignore[misc]
    """Within it, code of the user's makes no tensors. What this package needs, to take a value out of a
    message, goes on.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called for each function of torch."""
        if func in _device_constructors() and not _is_ours(sys._getframe(1)):
            name = getattr(func, "__name__", str(func))
            raise NoTensorEngine(
                f"torch.{name}() in `with mesh.activate()` would make a tensor of the mesh, which "
                f"monarch_nb can't do yet. On each rank: procs.execute(torch.{name}, ...), an actor, "
                "or a %%mesh cell. A local tensor: make it outside of the block"
            )
        return func(*args, **dict(kwargs or {}))


def _is_ours(frame: Any) -> bool:
    """Say whether this package has called torch: the first frame that isn't torch's own is."""
    modules = (module_of(each) for each in frames_from(frame))
    return is_of_package(next((module for module in modules if not f"{module}.".startswith(_NOT_USERS)), ""))
