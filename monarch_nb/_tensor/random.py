"""Random numbers of the ranks: each rank has a generator of its own, from which it draws its own values. (A
tensor laid out over the mesh doesn't use it: that depends on `torch.manual_seed` of this program only.)

All functions are of the active mesh.

Example:
    >>> with mesh.activate():                                # doctest: +SKIP
    ...     monarch_nb.random.set_state(monarch_nb.random.new_state(7))
    ...     x = torch.rand(3)                                # the same on all ranks
"""

from __future__ import annotations

from typing import Any

import torch

from monarch_nb._tensor.remote import Remote
from monarch_nb._tensor.tensor import Tensor


def _get() -> Any:
    return torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.get_rng_state()


def _set(state: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(state.cpu())
    else:
        torch.set_rng_state(state)


def _new(seed: Any) -> Any:
    kind = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    return torch.Generator(kind).manual_seed(int(seed)).get_state()


def _deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def get_state() -> Tensor:
    """Return the states of the ranks' generators, as a tensor that stays on the ranks."""
    found: Tensor = Remote(_get)()
    return found


def set_state(state: Tensor) -> None:
    """Set the ranks' generators to a state that `get_state` or `new_state` has returned."""
    Remote(_set)(state)


def new_state(seed: int | Tensor) -> Tensor:
    """Return the state of a new generator.

    Args:
        seed: an integer, the same on all ranks; or a tensor of which each rank has its own value, such as
            `rank_tensor`.
    """
    found: Tensor = Remote(_new)(seed)
    return found


def make_deterministic() -> None:
    """Make the ranks use deterministic algorithms only."""
    Remote(_deterministic)()
