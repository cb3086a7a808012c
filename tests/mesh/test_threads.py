"""Threads that ranks take, if the user says so in a way that OpenMP knows, and processes that compile."""

from __future__ import annotations

import os

import pytest

from monarch_nb import mesh as meshes
from monarch_nb._wire.granted import granted_cores


def threads() -> tuple[str, int]:
    import torch

    return os.environ["OMP_NUM_THREADS"], torch.get_num_threads()


@pytest.mark.parametrize(
    ("given", "taken"), [("4,2", 4), (" 3 ", 3), ("many", None), ("0", None), ("", None), ("2,", 2)]
)
def test_whatever_is_said_of_openmp_ranks_start(given: str, taken: int | None) -> None:
    mesh = meshes.start("threads", {"gpus": 1}, env={"OMP_NUM_THREADS": given})
    (found,) = mesh.execute(threads).get(60).values()
    assert found[0] == given
    assert taken is None or found[1] == taken
    mesh.stop(grace_s=0.0).get(60)


def compilers() -> tuple[str, int]:
    import torch._inductor.config

    return os.environ["TORCHINDUCTOR_COMPILE_THREADS"], torch._inductor.config.compile_threads


@pytest.mark.parametrize("preload", ["", "torch._inductor.config"])
@pytest.mark.parametrize("given", ["", "3"])
def test_ranks_share_what_compiles(given: str, preload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_NB_PRELOAD", preload)
    env = {"TORCHINDUCTOR_COMPILE_THREADS": given} if given else {}
    mesh = meshes.start("compilers", {"gpus": 2}, env=env)
    num = int(given or max(1, granted_cores() // 2))
    assert set(mesh.execute(compilers).get(60).values()) == {(str(num), num)}
    mesh.stop(grace_s=0.0).get(60)
