"""How many threads ranks take, if the user says so in a way that OpenMP knows."""

from __future__ import annotations

import os

import pytest

from monarch_nb import mesh as meshes


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
