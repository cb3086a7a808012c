"""Tensors of a mesh, and a module on it, in JupyterLab: what a new user sees of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, Page, opened

CELLS = [
    "import torch\nfrom torch import nn, optim\nimport monarch_nb\nfrom monarch_nb.distributed import Mesh\n"
    "mesh = Mesh(shape=(2, 2), mesh_dim_names=('data_parallel', 'model_parallel'))",
    "x = torch.arange(32.0).view(8, 4)\nmonarch_nb.distribute(x, mesh, ['data_parallel', 'model_parallel'])",
    "class Settings:\n    scale = 1.0\n\n"
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))\n\n"
    "    def forward(self, x):\n        return self.layers(x) * Settings.scale\n\n"
    "model = monarch_nb.parallelize(Net(), mesh)\nmonarch_nb.explain(model)",
    "optimizer = optim.AdamW(model.parameters(), lr=1e-2)\n"
    "for step in range(3):\n    optimizer.zero_grad()\n    loss = model(x).square().mean()\n"
    "    loss.backward()\n    optimizer.step()\nloss",
    "Settings.scale = 0.0\nmodel(x)",
    "model(x[:, :3])",
    "mesh.stop()",
]


@pytest.fixture(scope="module")
def page(browser: Any, lab: Lab) -> Iterator[Page]:
    with opened(browser, lab, CELLS, "tensors.ipynb") as notebook:
        yield notebook


def table(page: Page, number: int) -> list[str]:
    """Run a cell; return the texts of the fields of the table that it shows."""
    page.run(number)
    cell = page.page.locator(".jp-Notebook .jp-Cell").nth(number)
    fields = cell.locator(".jp-OutputArea-output table").first.locator("th, td")
    fields.first.wait_for()
    return [text.strip() for text in fields.all_inner_texts()]


def test_tensors_and_a_model(page: Page, pictures: Path) -> None:
    assert {"data_parallel=1", "model_parallel=1", "[4:8, 2:4]"} < set(table(page, 1))
    assert {"taken", "DDP"} < set(table(page, 2))
    assert table(page, 3) == ["", *(f"data={n}" for n in range(4)), "", *["[] to be averaged"] * 4]
    page.picture(pictures / "tensors.png")
    table(page, 4)
    assert page.text(4).replace("-0.", "0.").count("[0., 0.]") == 8, "the class of a cell before has changed"
    wrong = page.run(5)
    page.picture(pictures / "tensors_error.png")
    assert "must have same reduction dim" in wrong and "in forward of layers.0" in wrong
