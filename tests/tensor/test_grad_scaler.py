"""Loops with `torch.amp.GradScaler` on a module of a mesh do what they do on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import monarch_nb
from monarch_nb.distributed import Mesh

STEPS = 6
OVERFLOWS_IN = 2


def trained(model: nn.Module, batches: list[torch.Tensor], clips: bool) -> tuple[list[float], list[float]]:
    """Train as the documentation of torch says; return scales and losses. One batch overflows."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scales, losses = [], []
    for number, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        if number == OVERFLOWS_IN:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        losses.append(loss.item())
    return scales, losses


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("how", ["ddp", "fsdp", "operation by operation"])
def test_a_scaled_loop_is_that_of_one_process(mesh: Mesh, how: str, clips: bool) -> None:
    torch.manual_seed(5)
    plain = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)).double()
    batches = [torch.randn(8, 6, dtype=torch.float64) for _ in range(STEPS)]
    model: Any
    if how == "operation by operation":
        model = monarch_nb.module_to_mesh(plain, mesh)
    else:
        model = monarch_nb.parallelize(plain, mesh, how)
    ours = trained(model, batches, clips)
    wanted = trained(plain, batches, clips)
    assert ours[0] == wanted[0] == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0, 2048.0]
    assert ours[1] == pytest.approx(wanted[1], abs=1e-9)
    for mine, one in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine.full(), one, rtol=0, atol=1e-9)
