"""An actor with much state."""

from __future__ import annotations

import time
from typing import Any

import torch

from monarch_nb.actor import Checkpointed, endpoint

EVERY = 8


class Big(Checkpointed):
    """Holds one tensor of a size; saved after every eighth call."""

    checkpoint_every = EVERY

    def __init__(self, num_bytes: int) -> None:
        self.weight = torch.ones(num_bytes // 4)

    def state_dict(self) -> Any:
        return {"weight": self.weight}

    def load_state_dict(self, state: Any) -> None:
        self.weight = state["weight"]

    @endpoint
    def step(self) -> None:
        """Touch it all, as an optimizer does: the copy must wait for the step, and the next step for the
        copy.
        """
        self.weight.add_(1.0)

    @endpoint
    def copy_ms(self) -> float:
        """Return how long one copy takes."""
        other = torch.empty_like(self.weight)
        other.copy_(self.weight)
        start = time.perf_counter()
        other.copy_(self.weight)
        return (time.perf_counter() - start) * 1e3
